// Command segmentio runs one scenario with segmentio's kafka-go: segmentio SCENARIO BOOTSTRAP TOPIC.
// It prints what tests/foreign/test_go_and_node.py asserts on, and exits with 1 and a reason when a check fails.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

const patience = time.Minute

var (
	bootstrap = strings.Split(os.Args[2], ",")
	topic     = os.Args[3]
	client    = &kafka.Client{Addr: kafka.TCP(bootstrap...), Timeout: patience}
	ctx, _    = context.WithTimeout(context.Background(), 2*patience)
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

func send(codec kafka.Compression, acks kafka.RequiredAcks, values []string) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap...), Topic: topic, Compression: codec, RequiredAcks: acks, BatchTimeout: 5 * time.Millisecond,
	}
	var messages []kafka.Message
	for _, value := range values {
		messages = append(messages, kafka.Message{Value: []byte(value), Headers: []kafka.Header{{Key: "by", Value: []byte("x")}}})
	}
	check(writer.WriteMessages(ctx, messages...), "produce")
	check(writer.Close(), "close")
}

func numbered(prefix string, count int) (values []string) {
	for each := range count {
		values = append(values, fmt.Sprintf("%s-%02d", prefix, each))
	}
	return values
}

func produce() {
	want := map[string]bool{}
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		for _, acks := range []kafka.RequiredAcks{kafka.RequireAll, kafka.RequireOne, kafka.RequireNone} {
			values := numbered(fmt.Sprintf("%s %s %d", strings.Repeat("x", 200), codec, acks), 20)
			send(codec, acks, values)
			for _, value := range values {
				want[value] = true
			}
		}
	}
	total := len(want)
	values := make(chan string)
	for partition := range 4 {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: bootstrap, Topic: topic, Partition: partition, MaxWait: 100 * time.Millisecond,
		})
		go func() {
			for {
				message, err := reader.ReadMessage(ctx)
				check(err, "read")
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
	leader, err := kafka.DialLeader(ctx, "tcp", bootstrap[0], topic, 0)
	check(err, "dial")
	start := time.UnixMilli(1_700_000_000_000)
	for second := range 3 {
		message := kafka.Message{Value: []byte("x"), Time: start.Add(time.Duration(second) * time.Second)}
		_, err := leader.WriteMessages(message)
		check(err, "produce")
	}
	after, err := leader.ReadOffset(start.Add(500 * time.Millisecond))
	check(err, "offset by time")
	end, err := leader.ReadLastOffset()
	check(err, "end offset")
	fmt.Println(after, end)
}

func create(partitions int) error {
	made, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: topic, NumPartitions: partitions, ReplicationFactor: 3,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "3600000"}},
	}}})
	check(err, "create")
	return made.Errors[topic]
}

// partitions asks a broker: the client keeps what it knows for seconds.
func partitions() int {
	found, err := kafka.LookupPartitions(ctx, "tcp", bootstrap[0], topic)
	check(err, "metadata")
	return len(found)
}

func admin() {
	check(create(3), "create")
	require(create(3) != nil, "created twice")
	resource := kafka.DescribeConfigRequestResource{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"retention.ms"},
	}
	_, err := client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
				Name: "retention.ms", Value: "86400000", ConfigOperation: kafka.ConfigOperationSet,
			}},
		}},
	})
	check(err, "alter")
	described, err := client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{resource}})
	check(err, "describe")
	entries := described.Resources[0].ConfigEntries
	require(len(entries) == 1 && entries[0].ConfigValue == "86400000", "retention.ms", entries)
	added, err := client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 5}},
	})
	check(err, "add partitions")
	check(added.Errors[topic], "add partitions")
	require(partitions() == 5, "partitions")
	deleted, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	check(err, "delete")
	check(deleted.Errors[topic], "delete")
	check(create(1), "create again")
	send(0, kafka.RequireAll, []string{"new"})
	fmt.Println(partitions())
}

// member reads in a group and commits what it reads.
type member struct {
	reader *kafka.Reader
	values chan string
	stop   context.CancelFunc
	ended  chan struct{}
}

func join(name string) *member {
	running, stop := context.WithCancel(ctx)
	joined := &member{values: make(chan string, 1000), stop: stop, ended: make(chan struct{})}
	joined.reader = kafka.NewReader(kafka.ReaderConfig{
		Brokers: bootstrap, GroupID: name, Topic: topic, StartOffset: kafka.FirstOffset,
		MaxWait: 100 * time.Millisecond, HeartbeatInterval: 200 * time.Millisecond,
	})
	go func() {
		defer close(joined.ended)
		for {
			message, err := joined.reader.FetchMessage(running)
			if running.Err() != nil {
				return
			}
			check(err, "fetch")
			joined.values <- string(message.Value)
			check(joined.reader.CommitMessages(ctx, message), "commit")
		}
	}()
	return joined
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

func (m *member) leave() {
	m.stop()
	<-m.ended
	check(m.reader.Close(), "leave")
}

// eager: two members share four partitions, commit and leave; a third resumes at their offsets.
func eager() {
	name := "group-of-" + topic
	send(0, kafka.RequireAll, numbered("old", 40))
	first := join(name)
	seen := map[string]bool{}
	for _, value := range first.read(40) {
		seen[value] = true
	}
	second := join(name)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		described, err := client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{name}})
		check(err, "describe")
		shares := []int{}
		for _, each := range described.Groups[0].Members {
			for _, assigned := range each.MemberAssignments.Topics {
				shares = append(shares, len(assigned.Partitions))
			}
		}
		if described.Groups[0].GroupState == "Stable" && len(shares) == 2 && shares[0] == 2 && shares[1] == 2 {
			break
		}
		require(time.Now().Before(deadline), "the members did not share the partitions", shares)
	}
	first.leave()
	second.leave()
	send(0, kafka.RequireAll, numbered("new", 40))
	third := join(name)
	for _, value := range third.read(40) {
		require(strings.HasPrefix(value, "new") && !seen[value], "read a committed record again", value)
		seen[value] = true
	}
	third.leave()
	fmt.Println(len(seen))
}

func main() {
	scenarios := map[string]func(){"produce": produce, "offsets": offsets, "admin": admin, "eager": eager}
	scenarios[os.Args[1]]()
}
