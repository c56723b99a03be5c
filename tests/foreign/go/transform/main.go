// Command transform is the job of tests/e2e/transform_rounds.py with franz-go: transform BOOTSTRAP NAME.
// It prints the phases of tests/e2e/transform_jobs.py, and ends when its standard input ends.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	recordsMax  = 100
	pollTimeout = 200 * time.Millisecond
	endTxn      = 26 // the API key of EndTxn
)

// ends reports that the offsets are sent: franz-go sends them and ends the transaction in one call.
type ends struct{}

func (ends) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == endTxn && err == nil {
		fmt.Println("offsets")
	}
}

var _ kgo.HookBrokerWrite = ends{}

func endWithParent() {
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func session() (*kgo.GroupTransactSession, error) {
	return kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.TransactionalID(os.Args[2]),
		kgo.TransactionTimeout(10*time.Second),
		kgo.ConsumerGroup("transform"),
		kgo.ConsumeTopics("input"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(2*time.Second),
		kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.WithHooks(ends{}),
	)
}

// step transforms what one poll returns. An error means that the session cannot go on.
func step(in context.Context, job *kgo.GroupTransactSession) error {
	brief, cancel := context.WithTimeout(in, pollTimeout)
	fetches := job.PollRecords(brief, recordsMax)
	cancel()
	if fetches.NumRecords() == 0 {
		return nil
	}
	fmt.Println("begun")
	if err := job.Begin(); err != nil {
		return err
	}
	sent := kgo.AbortingFirstErrPromise(job.Client())
	fetches.EachRecord(func(record *kgo.Record) {
		changed := &kgo.Record{Topic: "output", Partition: record.Partition, Value: append(record.Value, '!')}
		job.Produce(in, changed, sent.Promise())
	})
	failed := sent.Err()
	fmt.Println("sent")
	// It sends the offsets and commits; after a failure it aborts and goes back to the committed offsets.
	committed, err := job.End(in, kgo.TransactionEndTry(failed == nil))
	if committed {
		fmt.Println("committed")
	} else {
		fmt.Fprintln(os.Stderr, "not committed:", failed, err)
	}
	return err
}

func main() {
	go endWithParent()
	for {
		job, err := session()
		for err == nil {
			err = step(context.Background(), job)
		}
		fmt.Fprintln(os.Stderr, err)
		if job != nil {
			job.Close()
		}
	}
}
