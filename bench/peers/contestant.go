package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// settings are those of a contestant of bench hot.
type settings struct {
	redis, prefix string
	slots         int
	work          time.Duration
	client        *redis.Client
}

// contestant is a way to queue events and to work on them. Its keys in Redis begin with the prefix.
type contestant struct {
	version string

	// queue prepares to queue events, and returns a function for each of them and one for the end.
	queue func(ctx context.Context, s settings) (add func(event, repo string) error, end func() error, err error)

	// work prepares to work on events, and returns a function that does so until its context ends.
	work func(ctx context.Context, s settings, report reporter) (run func(context.Context) error, err error)
}

// reporter prints that a worker has worked on an event. Settled is 0 if that failed.
type reporter func(event string, began, ended, settled int64) error

// runContestant runs one command of the worker protocol: queue or work.
func runContestant(c contestant, args []string) error {
	if len(args) == 0 || args[0] != "queue" && args[0] != "work" {
		return fmt.Errorf("want queue or work")
	}
	var s settings
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&s.redis, "redis", "", "URL of the Redis to use")
	flags.StringVar(&s.prefix, "prefix", "", "prefix of all keys")
	flags.IntVar(&s.slots, "slots", 5, "how many events to work on at once")
	workMS := flags.Int("work-ms", 20, "how long the work on an event takes")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	s.work = time.Duration(*workMS) * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var err error
	if s.client, err = openGoRedis(ctx, s.redis); err != nil {
		return err
	}
	if args[0] == "queue" {
		return c.queueEvents(ctx, s)
	}

	var mu sync.Mutex
	run, err := c.work(ctx, s, func(event string, began, ended, settled int64) error {
		if _, err := strconv.Atoi(event); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Fprintln(os.Stdout, event, began, ended, settled)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Println("ready", c.version)
	stdin := bufio.NewReader(os.Stdin)
	if _, err := stdin.ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return run(ctx)
}

// queueEvents queues an event for each line of "<event> <repo>" as soon as it has read it.
func (c contestant) queueEvents(ctx context.Context, s settings) error {
	add, end, err := c.queue(ctx, s)
	if err != nil {
		return err
	}
	fmt.Println("ready", c.version)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		event, repo, _ := strings.Cut(lines.Text(), " ")
		if err := add(event, repo); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return end()
}

// claim returns the number of a place below n that no other slot has taken.
func (s settings) claim(ctx context.Context, n int) (int, error) {
	for i := range n {
		if free, err := s.client.SetNX(ctx, fmt.Sprint(s.prefix, "place:", i), 1, 0).Result(); err != nil || free {
			return i, err
		}
	}
	return 0, fmt.Errorf("all %d places are taken; want as many slots over all processes", n)
}

func noEnd() error { return nil }
