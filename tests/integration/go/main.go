// Clients of franz-go that are told what to do line by line, as tests/clients/__init__.py says.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const (
	timeout = 300 * time.Second // tests/clients/driving.py waits as the machine allows
	pace    = 250 * time.Millisecond
)

var printing sync.Mutex

type line struct {
	Client string `json:"client"`
	Event  string `json:"event"`
	Offset int64  `json:"offset"`
	Value  string `json:"value"`
}

func tell(client, event, value string, offset int64) {
	text, _ := json.Marshal(line{client, event, offset, value})
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(text))
}

// A client with a goroutine of its own.
type running struct {
	stop  context.CancelFunc
	ended chan struct{}
}

func start(run func(context.Context)) running {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	return running{stop, ended}
}

func (r running) end() {
	r.stop()
	<-r.ended
}

// How a client gets to the gateways, as tests/clients/ways.py writes it.
type way struct {
	Go struct {
		Seeds              []string
		Ca, User, Password string
	}
}

var ways map[string]way

// With what else the client of this name is to have.
func options(name string, more ...kgo.Opt) ([]kgo.Opt, error) {
	prefix, _, _ := strings.Cut(name, ":")
	to := ways[prefix].Go
	made := append([]kgo.Opt{kgo.SeedBrokers(to.Seeds...)}, more...)
	if to.Ca != "" {
		pem, err := os.ReadFile(to.Ca)
		if err != nil {
			return nil, err
		}
		trusted := x509.NewCertPool()
		if !trusted.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", to.Ca)
		}
		made = append(made, kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}))
	}
	if to.User != "" {
		login := scram.Auth{User: to.User, Pass: to.Password}
		made = append(made, kgo.SASL(login.AsSha512Mechanism()))
	}
	return made, nil
}

func connect(name string, more ...kgo.Opt) (*kgo.Client, error) {
	made, err := options(name, more...)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(made...)
}

func open(name, group, protocol, isolation, topic string) (running, error) {
	options := []kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.FetchMinBytes(16384),
		kgo.FetchMaxWait(500 * time.Millisecond),
	}
	if isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if protocol == "consumer" {
		options = append(options, kgo.WithContext(context.WithValue(
			context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)))
	}
	client, err := connect(name, options...)
	if err != nil {
		return running{}, err
	}
	return start(func(ctx context.Context) {
		defer client.Close()
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			fetches.EachError(func(_ string, _ int32, err error) {
				if !errors.Is(err, context.Canceled) {
					tell(name, "told", err.Error(), -1)
				}
			})
			fetches.EachRecord(func(record *kgo.Record) {
				id, _, _ := strings.Cut(string(record.Value), " ")
				tell(name, "read", id, record.Offset)
			})
			if fetches.NumRecords() > 0 {
				if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
					tell(name, "told", err.Error(), -1)
				}
			}
		}
	}), nil
}

func produce(name, topic string) (running, error) {
	client, err := connect(
		name, kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.GzipCompression())) // snappy, the default, is not Python's
	if err != nil {
		return running{}, err
	}
	return start(func(ctx context.Context) {
		defer client.Close()
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for sent := 0; ctx.Err() == nil; sent++ {
			record := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprintf("%s/%d", name, sent))}
			client.Produce(context.Background(), record, func(r *kgo.Record, err error) {
				if err != nil {
					tell(name, "told", err.Error(), -1)
					return
				}
				tell(name, "acked", string(r.Value), r.Offset)
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		if err := client.Flush(context.Background()); err != nil {
			tell(name, "told", err.Error(), -1)
		}
	}), nil
}

var transactional = map[string]*kgo.Client{}

func transact(name, topic, end, value string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client, known := transactional[name]
	if !known {
		made, err := connect(
			name, kgo.TransactionalID(name+"-"+topic),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerBatchCompression(kgo.GzipCompression()))
		if err != nil {
			return "", err
		}
		transactional[name], client = made, made
	}
	if err := client.BeginTransaction(); err != nil {
		return "", err
	}
	record, err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).First()
	if err == nil && end == "commit" {
		if err = client.EndTransaction(ctx, kgo.TryCommit); err == nil {
			return fmt.Sprintf("committed %d", record.Offset), nil
		}
	}
	if ended := client.EndTransaction(ctx, kgo.TryAbort); ended != nil {
		return "", fmt.Errorf("%v, and its abort: %w", err, ended)
	}
	if err != nil {
		var told *kerr.Error
		if errors.As(err, &told) {
			return "refused " + told.Message, nil
		}
		return "refused " + err.Error(), nil
	}
	return fmt.Sprintf("aborted %d", record.Offset), nil
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = json.Unmarshal(text, &ways)
	}
	if err != nil {
		panic(err)
	}
	clients := map[string]running{}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		words := strings.Fields(commands.Text())
		answer, err := "done", error(nil)
		switch words[0] {
		case "open":
			clients[words[1]], err = open(words[1], words[2], words[3], words[4], words[5])
		case "produce":
			clients[words[1]], err = produce(words[1], words[2])
		case "transact":
			answer, err = transact(words[1], words[2], words[3], words[4])
		default:
			clients[words[1]].end()
			delete(clients, words[1])
		}
		if err != nil {
			answer = "failed " + err.Error()
		}
		tell("", "answer", answer, -1)
	}
	for _, client := range clients {
		client.end()
	}
	for _, client := range transactional {
		client.Close()
	}
}
