// Command sarama runs one scenario with sarama: sarama SCENARIO BOOTSTRAP TOPIC.
// It prints what tests/foreign/test_go_and_node.py asserts on, and exits with 1 and a reason when a check fails.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const patience = time.Minute

var (
	bootstrap = strings.Split(os.Args[2], ",")
	topic     = os.Args[3]
)

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func require(holds bool, what string, values ...any) {
	if !holds {
		check(fmt.Errorf("%v", values), what)
	}
}

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.Return.Successes = true
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	return made
}

func idempotent() *sarama.Config {
	made := config()
	made.Producer.Idempotent = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Net.MaxOpenRequests = 1
	made.Producer.Retry.Max = 100
	return made
}

func send(settings *sarama.Config, values []string) {
	producer, err := sarama.NewSyncProducer(bootstrap, settings)
	check(err, "producer")
	var messages []*sarama.ProducerMessage
	for _, value := range values {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
	}
	check(producer.SendMessages(messages), "produce")
	check(producer.Close(), "close")
}

func numbered(prefix string, count int) (values []string) {
	for each := range count {
		values = append(values, fmt.Sprintf("%s-%02d", prefix, each))
	}
	return values
}

func produce() {
	want := map[string]bool{}
	for _, codec := range []sarama.CompressionCodec{0, 1, 2, 3, 4} {
		for _, acks := range []sarama.RequiredAcks{sarama.WaitForAll, sarama.WaitForLocal, sarama.NoResponse} {
			settings := config()
			if acks == sarama.WaitForAll {
				settings = idempotent()
			}
			settings.Producer.RequiredAcks, settings.Producer.Compression = acks, codec
			values := numbered(fmt.Sprintf("%s %s %d", strings.Repeat("x", 200), codec, acks), 20)
			send(settings, values)
			for _, value := range values {
				want[value] = true
			}
		}
	}
	total := len(want)
	consumer, err := sarama.NewConsumer(bootstrap, config())
	check(err, "consumer")
	partitions, err := consumer.Partitions(topic)
	check(err, "partitions")
	values := make(chan string)
	for _, partition := range partitions {
		from, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		check(err, "consume")
		go func() {
			for message := range from.Messages() {
				values <- string(message.Value)
			}
		}()
	}
	for range total {
		select {
		case value := <-values:
			require(want[value], "a record that was not produced, or a second one", value)
			delete(want, value)
		case <-time.After(patience):
			require(false, "records are missing", len(want))
		}
	}
	fmt.Println(total)
}

func offsets() {
	settings := config()
	settings.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer(bootstrap, settings)
	check(err, "producer")
	start := time.UnixMilli(1_700_000_000_000)
	for second := range 3 {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{
			Topic: topic, Value: sarama.StringEncoder("x"), Timestamp: start.Add(time.Duration(second) * time.Second),
		})
		check(err, "produce")
	}
	client, err := sarama.NewClient(bootstrap, settings)
	check(err, "client")
	after, err := client.GetOffset(topic, 0, start.UnixMilli()+500)
	check(err, "offset by time")
	end, err := client.GetOffset(topic, 0, sarama.OffsetNewest)
	check(err, "end offset")
	fmt.Println(after, end)
}

func admin() {
	admin, err := sarama.NewClusterAdmin(bootstrap, config())
	check(err, "admin")
	hour, day := "3600000", "86400000"
	wanted := &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 3, ConfigEntries: map[string]*string{"retention.ms": &hour}}
	check(admin.CreateTopic(topic, wanted, false), "create")
	require(admin.CreateTopic(topic, wanted, false) != nil, "created twice")
	check(admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &day},
	}, false), "alter")
	described, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}})
	check(err, "describe")
	require(len(described) == 1 && described[0].Value == day, "retention.ms", described)
	check(admin.CreatePartitions(topic, 5, nil, false), "add partitions")
	before, err := admin.DescribeTopics([]string{topic})
	check(err, "describe the topic")
	require(len(before[0].Partitions) == 5, "partitions", len(before[0].Partitions))
	check(admin.DeleteTopic(topic), "delete")
	wanted.NumPartitions = 1
	check(admin.CreateTopic(topic, wanted, false), "create again")
	after, err := admin.DescribeTopics([]string{topic})
	check(err, "describe the topic again")
	require(before[0].Uuid != after[0].Uuid, "the topic id did not change")
	send(config(), []string{"new"})
	fmt.Println(len(after[0].Partitions))
}

// member is one consumer of a group. It marks and commits what it reads.
type member struct {
	values     chan string
	generation chan int32
	claims     sync.Map
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.claims.Store("now", len(session.Claims()[topic]))
	select {
	case m.generation <- session.GenerationID():
	default:
	}
	return nil
}
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.values <- string(message.Value)
		session.MarkMessage(message, "")
	}
	session.Commit()
	return nil
}

func join(name string, settings *sarama.Config) (*member, func()) {
	joined := &member{values: make(chan string, 1000), generation: make(chan int32, 1)}
	group, err := sarama.NewConsumerGroup(bootstrap, name, settings)
	check(err, "group")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{topic}, joined); err != nil && ctx.Err() == nil {
				check(err, "consume")
			}
		}
	}()
	return joined, func() { stop(); <-ended; check(group.Close(), "leave") }
}

func (m *member) read(count int) (values []string) {
	for range count {
		select {
		case value := <-m.values:
			values = append(values, value)
		case <-time.After(patience):
			require(false, "records are missing", len(values), count)
		}
	}
	return values
}

// eager: two members share four partitions, commit and leave; a third resumes at their offsets.
func eager() {
	settings := config()
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	settings.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	name := "group-of-" + topic
	send(config(), numbered("old", 40))
	first, firstLeaves := join(name, settings)
	seen := map[string]bool{}
	for _, value := range first.read(40) {
		seen[value] = true
	}
	second, secondLeaves := join(name, settings)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		one, _ := first.claims.Load("now")
		other, _ := second.claims.Load("now")
		if one == 2 && other == 2 {
			break
		}
		require(time.Now().Before(deadline), "the members did not share the partitions", one, other)
	}
	firstLeaves()
	secondLeaves()
	send(config(), numbered("new", 40))
	third, thirdLeaves := join(name, settings)
	for _, value := range third.read(40) {
		require(strings.HasPrefix(value, "new") && !seen[value], "read a committed record again", value)
		seen[value] = true
	}
	thirdLeaves()
	fmt.Println(len(seen))
}

// static: a member with an instance id that comes back keeps its generation.
func static() {
	settings := config()
	settings.Consumer.Group.InstanceId = "one"
	var generations []int32
	for range 2 {
		joined, leave := join("static-"+topic, settings)
		select {
		case generation := <-joined.generation:
			generations = append(generations, generation)
		case <-time.After(patience):
			require(false, "no generation")
		}
		leave()
	}
	fmt.Println(generations[0] == generations[1])
}

// numbers: 3,000 numbered records; the test kills the leader when it reads the first line.
func numbers() {
	producer, err := sarama.NewAsyncProducer(bootstrap, idempotent())
	check(err, "producer")
	acked := make(chan error)
	go func() {
		for number := range 3000 {
			select {
			case <-producer.Successes():
			case failed := <-producer.Errors():
				acked <- failed
				return
			}
			if number == 500 {
				fmt.Println("half")
			}
		}
		acked <- nil
	}()
	for number := range 3000 {
		producer.Input() <- &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(strconv.Itoa(number))}
		if number%10 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	check(<-acked, "produce")
	check(producer.Close(), "close")
	fmt.Println("done")
}

func main() {
	scenarios := map[string]func(){
		"produce": produce, "offsets": offsets, "admin": admin, "eager": eager, "static": static, "numbers": numbers,
	}
	scenarios[os.Args[1]]()
}
