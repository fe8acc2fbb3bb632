package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
)

// stock is a contestant of bench hot: Watermill's own router and Redis Streams subscribers,
// with redsync's lock in the handler, all with their defaults. A subscriber handles one message at a time,
// so each slot is a subscriber.
//
// As stock-results, for bench stream, it does everything that Lockstep does: it reads a change, publishes a result with the
// stock publisher, and writes the repository's state.
type stock struct {
	redis, prefix string
	slots         int
	work          time.Duration
	results       bool
}

// runStock runs one command of the worker protocol: queue or work.
func runStock(args []string, results bool) error {
	if len(args) == 0 || args[0] != "queue" && args[0] != "work" {
		return fmt.Errorf("stock: want queue or work")
	}
	s := stock{results: results}
	flags := flag.NewFlagSet("stock "+args[0], flag.ContinueOnError)
	flags.StringVar(&s.redis, "redis", "", "URL of the Redis to use")
	flags.StringVar(&s.prefix, "prefix", "", "prefix of all keys")
	flags.IntVar(&s.slots, "slots", 5, "how many events to work on at once")
	workMS := flags.Int("work-ms", 20, "how long the work on an event takes")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	s.work = time.Duration(*workMS) * time.Millisecond
	if args[0] == "queue" {
		return s.queue(context.Background(), os.Stdin)
	}
	return s.run(context.Background(), bufio.NewReader(os.Stdin), os.Stdout)
}

func (s stock) topic() string { return s.prefix + "changes" }

// queue publishes a message for each line of "<event> <repo>".
func (s stock) queue(ctx context.Context, stdin io.Reader) error {
	client, err := openGoRedis(ctx, s.redis)
	if err != nil {
		return err
	}
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		event, repo, _ := strings.Cut(lines.Text(), " ")
		payload := []byte(repo)
		if s.results {
			if payload, err = newChange(event, repo); err != nil {
				return err
			}
		}
		if err := publisher.Publish(s.topic(), message.NewMessage(event, payload)); err != nil {
			return err
		}
	}
	return lines.Err()
}

// run prints ready, waits for the start, and works until standard input ends.
func (s stock) run(ctx context.Context, stdin *bufio.Reader, stdout io.Writer) error {
	handle, err := s.handler(ctx, stdout)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	for i := range s.slots {
		client, err := openGoRedis(ctx, s.redis) // one for each subscriber, which closes it
		if err != nil {
			return err
		}
		subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{Client: client, ConsumerGroup: "workers"}, nil)
		if err != nil {
			return err
		}
		router.AddConsumerHandler(fmt.Sprintf("slot %d", i), s.topic(), subscriber, handle)
	}
	fmt.Fprintf(stdout, "ready %s, redsync %s\n", version("github.com/ThreeDotsLabs/watermill-redisstream"), version(peers["redsync"].module))
	if _, err := stdin.ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	if _, err := io.Copy(io.Discard, stdin); err != nil {
		return err
	}
	if err := router.Close(); err != nil {
		return err
	}
	return <-stopped
}

// handler works under the repository's lock. If redsync's 32 tries fail it returns an error, which nacks the message, and the same
// subscriber gets it again at once.
func (s stock) handler(ctx context.Context, stdout io.Writer) (message.NoPublishHandlerFunc, error) {
	client, err := openGoRedis(ctx, s.redis)
	if err != nil {
		return nil, err
	}
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	report := func(moments ...any) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Fprintln(stdout, moments...)
		return err
	}
	return func(msg *message.Message) error {
		event, err := strconv.Atoi(msg.UUID)
		if err != nil {
			return err
		}
		repo, url := string(msg.Payload), ""
		if s.results {
			if repo, url, err = readChange(msg.Payload); err != nil {
				return err
			}
		}
		release, err := newRedsync(client, s.prefix+"lock:"+repo).acquire(msg.Context())
		if err != nil {
			return err
		}
		began := monotonic()
		time.Sleep(s.work)
		ended := monotonic()
		if s.results {
			if err := s.publish(msg.Context(), client, publisher, msg.UUID, repo, url); err != nil {
				return errors.Join(err, release(), report(event, began, ended, 0))
			}
		}
		if err := release(); err != nil {
			return errors.Join(err, report(event, began, ended, 0))
		}
		// The ack comes later, and the subscriber does not report it, so this time is slightly too early.
		return report(event, began, ended, monotonic())
	}, nil
}
