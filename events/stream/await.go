package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	awaitBlock = time.Second // maximum duration of one blocking read, during which ctx is not checked
	awaitBatch = 100         // maximum entries per read
)

// Await reads the stream called topic, starting after the entry with ID from ("0" for the beginning), until
// match accepts a message, and returns that message. It belongs to no consumer group, so it neither claims nor
// acknowledges entries. It skips entries that cannot be decoded.
//
// Await retries while Redis is unavailable. It returns an error if Redis refuses the read or, up to a second
// late, the cause of ctx's cancellation. Each call occupies one of the client's connections.
func Await(
	ctx context.Context, client redis.UniversalClient, topic, from string, match func(*message.Message) bool,
) (*message.Message, error) {
	if _, _, ok := events.ParseEntryID(from); !ok && from != "0" {
		return nil, fmt.Errorf("await a message of %s: %q is not an entry ID", topic, from)
	}
	pause := firstRetry
	for ctx.Err() == nil {
		entries, err := readAfter(ctx, client, topic, from, awaitBlock)
		switch {
		case unavailable(err):
			sleep(ctx, pause)
			pause = min(2*pause, lastRetry)
			continue
		case err != nil:
			return nil, fmt.Errorf("await a message of %s: %w", topic, err)
		}
		pause = firstRetry
		for _, e := range entries {
			from = e.ID
			if msg, err := decodeXMessage(unmarshaller{}, e); err == nil && match(msg) {
				return msg, nil
			}
		}
	}
	return nil, fmt.Errorf("await a message of %s: %w", topic, context.Cause(ctx))
}

// readAfter reads the next entries. It blocks until there are some, for the given time at most, but not past
// ctx's deadline.
func readAfter(
	ctx context.Context, client redis.UniversalClient, topic, from string, block time.Duration,
) (entries []redis.XMessage, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		block = max(time.Millisecond, min(block, time.Until(deadline))) // 0 would block forever
	}
	err = withTimeout(ctx, func(ctx context.Context) error {
		read, err := client.XRead(ctx, &redis.XReadArgs{
			Streams: []string{topic, from}, Count: awaitBatch, Block: block,
		}).Result()
		if err != nil || len(read) == 0 {
			return err
		}
		entries = read[0].Messages
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return entries, err
}

func decodeXMessage(u redisstream.Unmarshaller, m redis.XMessage) (*message.Message, error) {
	fields := make([]string, 0, 2*len(m.Values))
	for name, value := range m.Values {
		text, _ := value.(string)
		fields = append(fields, name, text)
	}
	return decode(u, entry{id: m.ID, fields: fields})
}
