// Command secured connects once for each line of JSON on standard input: secured TOPIC CA.
// For each it prints its name and OK, or the name of the error. What it does is "does": write, read (also reads the topic in a
// group), or renew (writes for some seconds, and must not connect again while its sessions end). The last ones mostly wait, and run
// at the same time.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type login struct {
	Name, Does, Bootstrap, Mechanism, User, Secret, Certificate string
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func mechanismOf(given login) sasl.Mechanism {
	word := scram.Auth{User: given.User, Pass: given.Secret}
	switch given.Mechanism {
	case "PLAIN":
		return plain.Auth{User: given.User, Pass: given.Secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return word.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return word.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: given.Secret}.AsMechanism()
	}
	return nil
}

// connects counts the connections to brokers.
type connects struct{ count atomic.Int32 }

func (each *connects) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil {
		each.count.Add(1)
	}
}

func run(given login, topic string, trusted *x509.CertPool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	config := &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}
	if given.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(given.Certificate, given.Certificate)
		check(err)
		config.Certificates = []tls.Certificate{pair}
	}
	seen := &connects{}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(given.Bootstrap, ",")...), kgo.DialTLSConfig(config), kgo.RequestRetries(1),
		kgo.DefaultProduceTopic(topic), kgo.RecordRetries(3), kgo.WithHooks(seen),
	}
	if mechanism := mechanismOf(given); mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	if given.Does == "read" {
		options = append(options, kgo.ConsumeTopics(topic), kgo.ConsumerGroup("franz"), kgo.DisableAutoCommit())
	}
	client, err := kgo.NewClient(options...)
	check(err)
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	write := func() error { return client.ProduceSync(ctx, kgo.StringRecord("tea")).FirstErr() }
	if err := write(); err != nil {
		return err
	}
	if given.Does == "renew" {
		before := seen.count.Load()
		for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if err := write(); err != nil {
				return err
			}
		}
		if seen.count.Load() != before {
			return errors.New("it connected again")
		}
	}
	for given.Does == "read" {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		if fetches.NumRecords() > 0 {
			return nil
		}
	}
	return nil
}

func nameOf(err error) string {
	var kafka *kerr.Error
	if errors.As(err, &kafka) {
		return kafka.Message
	}
	return err.Error()
}

func main() {
	pem, err := os.ReadFile(os.Args[2])
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	report := func(given login) {
		if err := run(given, os.Args[1], trusted); err != nil {
			fmt.Println(given.Name, nameOf(err))
		} else {
			fmt.Println(given.Name, "OK")
		}
	}
	var renewals sync.WaitGroup
	input := json.NewDecoder(os.Stdin)
	for input.More() {
		var given login
		check(input.Decode(&given))
		if given.Does != "renew" {
			report(given)
			continue
		}
		renewals.Add(1)
		go func() {
			defer renewals.Done()
			report(given)
		}()
	}
	renewals.Wait()
}
