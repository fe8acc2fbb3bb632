package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// places is the number of streams or partitions, and of slots over all processes: one for each of bench hot's defaults.
const places = 10

// hashed is a contestant with several streams: all events of a repository are in one, which has one active consumer that takes
// them in order. It needs no lock. A consumer keeps its place for the whole run; a real one would renew it.
var hashed = contestant{
	version: fmt.Sprintf("%d streams, go-redis", places),
	queue: func(ctx context.Context, s settings) (func(event, repo string) error, func() error, error) {
		return func(event, repo string) error {
			hash := fnv.New32a()
			hash.Write([]byte(repo))
			return s.client.XAdd(ctx, &redis.XAddArgs{Stream: s.stream(int(hash.Sum32() % places)), Values: []any{"event", event, "repo", repo}}).Err()
		}, noEnd, nil
	},
	work: func(ctx context.Context, s settings, report reporter) (func(context.Context) error, error) {
		streams := make([]string, s.slots)
		for i := range streams {
			place, err := s.claim(ctx, places)
			if err != nil {
				return nil, err
			}
			streams[i] = s.stream(place)
			if err := s.client.XGroupCreateMkStream(ctx, streams[i], "workers", "0").Err(); err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
				return nil, err
			}
		}
		return func(ctx context.Context) error {
			var slots errgroup.Group
			for _, stream := range streams {
				slots.Go(func() error { return s.consume(ctx, stream, report) })
			}
			return slots.Wait()
		}, nil
	},
}

func (s settings) stream(place int) string { return fmt.Sprint(s.prefix, "changes:", place) }

// consume works on the events of a stream until ctx ends.
func (s settings) consume(ctx context.Context, stream string, report reporter) error {
	args := &redis.XReadGroupArgs{Group: "workers", Consumer: "the one", Streams: []string{stream, ">"}, Count: 10, Block: 100 * time.Millisecond}
	for ctx.Err() == nil {
		read, err := s.client.XReadGroup(ctx, args).Result()
		if errors.Is(err, redis.Nil) || ctx.Err() != nil {
			continue
		}
		if err != nil {
			return err
		}
		for _, m := range read[0].Messages {
			event, _ := m.Values["event"].(string)
			began := monotonic()
			time.Sleep(s.work)
			ended := monotonic()
			if err := s.client.XAck(ctx, stream, "workers", m.ID).Err(); err != nil {
				return errors.Join(err, report(event, began, ended, 0))
			}
			if err := report(event, began, ended, monotonic()); err != nil {
				return err
			}
		}
	}
	return nil
}
