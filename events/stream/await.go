package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	awaitBlock = time.Second // for at most so long one read waits, and the end of a context goes unnoticed
	awaitBatch = 100         // entries of one read
)

// Await follows the stream called topic from behind the entry with id from ("0" for its beginning)
// until match accepts a message, and returns that. It is a follower of its own, in no group: it
// takes nothing from anybody and acknowledges nothing. Entries that are no messages are passed over.
//
// It outlasts a Redis that is away. It ends with what Redis has against reading the stream, or, up
// to a second late, with the cause of ctx. Each call keeps one of the client's connections busy.
func Await(ctx context.Context, client redis.UniversalClient, topic, from string, match func(*message.Message) bool) (*message.Message, error) {
	if _, _, ok := events.ParseEntryID(from); !ok && from != "0" {
		return nil, fmt.Errorf("await a message of %s: %q is no entry id", topic, from)
	}
	pause := firstRetry
	for ctx.Err() == nil {
		entries, err := readAfter(ctx, client, topic, from)
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
			if msg, err := decodeXMessage(e); err == nil && match(msg) {
				return msg, nil
			}
		}
	}
	return nil, fmt.Errorf("await a message of %s: %w", topic, context.Cause(ctx))
}

// readAfter reads the next entries, and waits for them if it must, but not past ctx's deadline.
func readAfter(ctx context.Context, client redis.UniversalClient, topic, from string) (entries []redis.XMessage, err error) {
	block := awaitBlock
	if deadline, ok := ctx.Deadline(); ok {
		block = max(time.Millisecond, min(block, time.Until(deadline))) // 0 would be for ever
	}
	err = withTimeout(ctx, func(ctx context.Context) error {
		read, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{topic, from}, Count: awaitBatch, Block: block}).Result()
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

// decodeXMessage makes a message of an entry as go-redis reads it.
func decodeXMessage(m redis.XMessage) (*message.Message, error) {
	fields := make([]string, 0, 2*len(m.Values))
	for name, value := range m.Values {
		text, _ := value.(string)
		fields = append(fields, name, text)
	}
	return decode(unmarshaller{}, entry{id: m.ID, fields: fields})
}
