package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

const (
	nextBlock  = time.Second // maximum duration of one blocking read
	nextCount  = 32          // maximum entries of a stream per blocking read
	rangeCount = 100         // maximum entries per page of a range
	rangeBytes = 1 << 20     // approximate size of a page of a range
)

// Reader reads streams from any entry on. It belongs to no consumer group, so it neither claims nor acknowledges
// entries. Its callers keep their own positions, and decide what to do while Redis is unavailable. It is safe for
// concurrent use: those who wait for the same entries share one blocking read, and so one connection.
type Reader struct {
	redis redis.UniversalClient
	waits singleflight.Group
}

// NewReader returns a Reader. The client is never closed.
func NewReader(client redis.UniversalClient) *Reader { return &Reader{redis: client} }

// Next returns the next entries by stream. after has the ID of the last entry read of each stream, "0-0" before the
// first. If there are none, it waits for some for up to a second, and then returns none. It ends at ctx's deadline, or
// with the read of another caller that it shares: up to a second later, or five while Redis hangs. The entries are
// shared and must not be changed.
func (r *Reader) Next(ctx context.Context, after map[string]string) (map[string][]redis.XMessage, error) {
	block := nextBlock
	if deadline, ok := ctx.Deadline(); ok {
		block = max(time.Millisecond, min(block, time.Until(deadline))) // 0 would block forever
	}
	read, err, _ := r.waits.Do(fmt.Sprint(after), func() (any, error) {
		args := &redis.XReadArgs{Streams: slices.Sorted(maps.Keys(after)), Count: nextCount, Block: block}
		for _, topic := range args.Streams {
			args.Streams = append(args.Streams, after[topic])
		}
		found := map[string][]redis.XMessage{}
		return found, withTimeout(ctx, func(ctx context.Context) error {
			streams, err := r.redis.XRead(ctx, args).Result()
			for _, s := range streams {
				found[s.Stream] = s.Messages
			}
			if errors.Is(err, redis.Nil) {
				return nil
			}
			return err
		})
	})
	return read.(map[string][]redis.XMessage), err
}

// Follow calls fn with each entry after those in after, as Next takes them, and moves them on when fn returns nil. It
// returns the error of fn or Redis or, up to a second late, the cause of ctx's cancellation.
func (r *Reader) Follow(
	ctx context.Context, after map[string]string, fn func(topic string, e redis.XMessage) error,
) error {
	for ctx.Err() == nil {
		read, err := r.Next(ctx, after)
		if err != nil {
			return err
		}
		for _, topic := range slices.Sorted(maps.Keys(read)) {
			for _, e := range read[topic] {
				if err := fn(topic, e); err != nil {
					return err
				}
				after[topic] = e.ID
			}
		}
	}
	return context.Cause(ctx)
}

// Forward yields the entries of a stream between two IDs, as XRANGE takes them, oldest first. It ends after the
// first error.
func (r *Reader) Forward(ctx context.Context, topic, from, to string) iter.Seq2[redis.XMessage, error] {
	return pages(ctx, topic, from, to, r.redis.XRangeN)
}

// Backward is like Forward, but newest first, as XREVRANGE: from is the newer ID.
func (r *Reader) Backward(ctx context.Context, topic, from, to string) iter.Seq2[redis.XMessage, error] {
	return pages(ctx, topic, from, to, r.redis.XRevRangeN)
}

func pages(
	ctx context.Context, topic, from, to string,
	read func(ctx context.Context, topic, from, to string, count int64) *redis.XMessageSliceCmd,
) iter.Seq2[redis.XMessage, error] {
	return func(yield func(redis.XMessage, error) bool) {
		for count := firstBatch; ; {
			page, err := read(ctx, topic, from, to, int64(count)).Result()
			if err != nil {
				yield(redis.XMessage{}, fmt.Errorf("read %s: %w", topic, err))
				return
			}
			bytes := 1
			for _, e := range page {
				if bytes += Size(e); !yield(e, nil) {
					return
				}
			}
			if len(page) < count {
				return
			}
			from = "(" + page[count-1].ID
			count = max(1, min(2*count, rangeCount, count*rangeBytes/bytes))
		}
	}
}

// Size returns the approximate size of an entry in bytes.
func Size(e redis.XMessage) int {
	n := 64
	for name, value := range e.Values {
		text, _ := value.(string)
		n += len(name) + len(text)
	}
	return n
}
