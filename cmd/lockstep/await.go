package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redisx"
)

// lastEntry is the id of a stream's last entry, or one before all.
func lastEntry(ctx context.Context, client redis.Cmdable, stream string) (string, error) {
	last, err := client.XRevRangeN(ctx, stream, "+", "-", 1).Result()
	if err != nil || len(last) == 0 {
		return "0", err
	}
	return last[0].ID, nil
}

// await reads results after the entry from until one answers the change with this id. It outlasts a
// Redis that is gone for a while; only ctx ends it.
func await(ctx context.Context, client redis.Cmdable, results, from, id string) (events.Result, error) {
	for ctx.Err() == nil {
		read, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{results, from}, Count: 100, Block: time.Second}).Result()
		if err != nil {
			if errors.Is(err, redis.Nil) {
				continue
			}
			if !redisx.Unavailable(err) {
				return events.Result{}, err
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
			continue
		}
		for _, entry := range read[0].Messages {
			from = entry.ID
			msg, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values)
			if err != nil {
				continue // somebody else's entry
			}
			result, err := events.ParseResult(msg.Payload)
			if err == nil && slices.Contains(result.Deliveries, id) {
				return result, nil
			}
		}
	}
	return events.Result{}, context.Cause(ctx)
}
