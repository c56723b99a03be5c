// Command franz runs one scenario with franz-go: franz SCENARIO BOOTSTRAP TOPIC.
// It prints what tests/foreign/test_go_and_node.py asserts on, and exits with 1 and a reason when a check fails.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	bootstrap = kgo.SeedBrokers(strings.Split(os.Args[2], ",")...)
	topic     = os.Args[3]
	ctx, _    = context.WithTimeout(context.Background(), time.Minute)
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

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, bootstrap)...)
	check(err, "client")
	return made
}

// read returns the values of the next count records.
func read(from *kgo.Client, count int) []string {
	var values []string
	for len(values) < count {
		fetches := from.PollFetches(ctx)
		check(fetches.Err(), fmt.Sprintf("fetch after %d of %d records", len(values), count))
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values
}

func produce() {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	var want []string
	for name, codec := range codecs {
		for number, acks := range []kgo.Acks{kgo.AllISRAcks(), kgo.LeaderAck(), kgo.NoAck()} {
			options := []kgo.Opt{kgo.ProducerBatchCompression(codec), kgo.RequiredAcks(acks), kgo.DefaultProduceTopic(topic)}
			if number > 0 {
				options = append(options, kgo.DisableIdempotentWrite())
			}
			producer := client(options...)
			for each := range 20 {
				value := fmt.Sprintf("%s-%d-%d-%s", name, number, each, strings.Repeat("x", 200))
				want = append(want, value)
				producer.Produce(ctx, &kgo.Record{Key: []byte(strconv.Itoa(each)), Value: []byte(value)}, func(_ *kgo.Record, err error) {
					check(err, "produce "+name)
				})
			}
			check(producer.Flush(ctx), "flush")
			producer.Close()
		}
	}
	consumer := client(kgo.ConsumeTopics(topic))
	defer consumer.Close()
	got := read(consumer, len(want))
	sort.Strings(want)
	sort.Strings(got)
	require(strings.Join(want, " ") == strings.Join(got, " "), "consumed other values", len(want), len(got))
	fmt.Println(len(got))
}

func offsets() {
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	start := time.UnixMilli(1_700_000_000_000)
	for second := range 3 {
		record := &kgo.Record{Topic: topic, Value: []byte("x"), Timestamp: start.Add(time.Duration(second) * time.Second)}
		check(producer.ProduceSync(ctx, record).FirstErr(), "produce")
	}
	admin := kadm.NewClient(producer)
	after, err := admin.ListOffsetsAfterMilli(ctx, start.UnixMilli()+500, topic)
	check(err, "list offsets by time")
	end, err := admin.ListEndOffsets(ctx, topic)
	check(err, "list end offsets")
	first, _ := after.Lookup(topic, 0)
	last, _ := end.Lookup(topic, 0)
	fmt.Println(first.Offset, last.Offset)
}

func admin() {
	// kadm answers from the client's metadata while it is younger than this.
	connected := client(kgo.MetadataMinAge(10 * time.Millisecond))
	defer connected.Close()
	admin := kadm.NewClient(connected)
	hour, day := "3600000", "86400000"
	_, err := admin.CreateTopic(ctx, 3, 3, map[string]*string{"retention.ms": &hour}, topic)
	check(err, "create")
	_, err = admin.CreateTopic(ctx, 3, 3, nil, topic)
	require(err != nil, "created twice")
	_, err = admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &day}}, topic)
	check(err, "alter")
	described, err := admin.DescribeTopicConfigs(ctx, topic)
	check(err, "describe")
	config, err := described.On(topic, nil)
	check(err, "describe "+topic)
	for _, each := range config.Configs {
		if each.Key == "retention.ms" {
			require(each.MaybeValue() == day, "retention.ms", each.MaybeValue())
		}
	}
	_, err = admin.UpdatePartitions(ctx, 5, topic)
	check(err, "add partitions")
	known, err := admin.ListTopics(ctx, topic)
	check(err, "list")
	before := known[topic]
	require(len(before.Partitions) == 5, "partitions", len(before.Partitions))
	require(len(before.Partitions[4].Replicas) == 3, "replicas", before.Partitions[4].Replicas)
	_, err = admin.DeleteTopic(ctx, topic)
	check(err, "delete")
	_, err = admin.CreateTopic(ctx, 1, 3, nil, topic)
	check(err, "create again")
	time.Sleep(20 * time.Millisecond)
	known, err = admin.ListTopics(ctx, topic)
	check(err, "list again")
	require(known[topic].ID != before.ID, "the topic id did not change")
	check(connected.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("new")}).FirstErr(), "produce")
	fmt.Println(len(known[topic].Partitions))
}

// group: two members share four partitions, commit and leave; a third resumes at their offsets.
func group(balancer kgo.GroupBalancer) {
	producer := client(kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	defer producer.Close()
	send := func(prefix string) {
		for each := range 40 {
			value := fmt.Sprintf("%s-%02d", prefix, each)
			check(producer.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr(), "produce")
		}
	}
	send("old")
	name := "group-of-" + topic
	member := func() *kgo.Client {
		return client(kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.Balancers(balancer), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	}
	first := member()
	seen := map[string]bool{}
	for _, value := range read(first, 40) {
		seen[value] = true
	}
	check(first.CommitUncommittedOffsets(ctx), "commit")
	second := member()
	admin := kadm.NewClient(producer)
	for shared := false; !shared; {
		first.PollFetches(brief())
		second.PollFetches(brief())
		described, err := admin.DescribeGroups(ctx, name)
		check(err, "describe the group")
		members := described[name].Members
		shared = described[name].State == "Stable" && len(members) == 2
		for _, each := range members {
			assigned, ok := each.Assigned.AsConsumer()
			shared = shared && ok && len(assigned.Topics) == 1 && len(assigned.Topics[0].Partitions) == 2
		}
		check(ctx.Err(), "the members did not share the partitions")
	}
	first.Close()
	second.Close()
	send("new")
	third := member()
	defer third.Close()
	for _, value := range read(third, 40) {
		require(strings.HasPrefix(value, "new") && !seen[value], "read a committed record again", value)
		seen[value] = true
	}
	fmt.Println(len(seen))
}

func brief() context.Context {
	short, _ := context.WithTimeout(ctx, 100*time.Millisecond)
	return short
}

// static: a member with an instance id that comes back keeps its generation.
func static() {
	var generations []int32
	var members []string
	for range 2 {
		member := client(kgo.ConsumerGroup("static-"+topic), kgo.InstanceID("one"), kgo.ConsumeTopics(topic))
		for member.PollFetches(brief()); ; member.PollFetches(brief()) {
			id, generation := member.GroupMetadata()
			if generation > 0 {
				generations, members = append(generations, generation), append(members, id)
				break
			}
			check(ctx.Err(), "no generation")
		}
		member.Close()
	}
	require(members[0] != members[1], "the member id did not change", members)
	fmt.Println(generations[0] == generations[1])
}

// numbers: 3,000 numbered records; the test kills the leader when it reads the first line.
func numbers() {
	producer := client(kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(time.Millisecond))
	defer producer.Close()
	out := bufio.NewWriter(os.Stdout)
	for number := range 3000 {
		producer.Produce(ctx, kgo.StringRecord(strconv.Itoa(number)), func(_ *kgo.Record, err error) { check(err, "produce") })
		if number == 500 {
			check(producer.Flush(ctx), "flush")
			fmt.Fprintln(out, "half")
			check(out.Flush(), "print")
		}
		if number%10 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	check(producer.Flush(ctx), "flush")
	fmt.Println("done")
}

func main() {
	scenarios := map[string]func(){
		"produce": produce, "offsets": offsets, "admin": admin, "static": static, "numbers": numbers,
		"eager": func() { group(kgo.RangeBalancer()) }, "cooperative": func() { group(kgo.CooperativeStickyBalancer()) },
	}
	scenarios[os.Args[1]]()
}
