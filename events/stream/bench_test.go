package stream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// BenchmarkDue measures the delay from the due time of a parked entry to its handler, with due times spread evenly.
// 100,000 entries are parked; those not measured are due in an hour.
func BenchmarkDue(b *testing.B) {
	const parked = 100_000
	for name, tc := range map[string]struct {
		due  int
		over time.Duration
	}{
		"1,000 of 100,000 over 2 s": {1_000, 2 * time.Second},
		"all 100,000 over 20 s":     {parked, 20 * time.Second},
		"all 100,000 over 2 s":      {parked, 2 * time.Second},
	} {
		b.Run(name, func(b *testing.B) {
			var late []time.Duration
			for range b.N {
				late = append(late, lateness(b, parked, tc.due, tc.over)...)
			}
			slices.Sort(late)
			for at, metric := range map[int]string{len(late) / 2: "ms/p50", len(late) * 99 / 100: "ms/p99", len(late) - 1: "ms/max"} {
				b.ReportMetric(float64(late[at].Microseconds())/1000, metric)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// lateness parks entries, some of which become due during a period that starts in three seconds.
func lateness(b *testing.B, parked, some int, over time.Duration) []time.Duration {
	b.Helper()
	server := redistest.StartReal(b)
	client, ctx := server.Client(), context.Background()
	fill(b, server, parked)
	if err := client.XGroupCreate(ctx, topic, group, "0").Err(); err != nil {
		b.Fatal(err)
	}
	begin := time.Now().Add(3 * time.Second)
	moments := make(map[string]time.Time, some)
	for n := 0; n < parked; {
		read, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "(parked)", Streams: []string{topic, ">"}, Count: 1000, Block: -1}).Result()
		if err != nil {
			b.Fatal(err)
		}
		scores := make([]redis.Z, len(read[0].Messages))
		for i, m := range read[0].Messages {
			at := begin.Add(time.Hour)
			if every := parked / some; n%every == 0 {
				at = begin.Add(over * time.Duration(n/every) / time.Duration(some)).Truncate(time.Millisecond)
				moments[m.ID] = at
			}
			scores[i] = redis.Z{Score: float64(at.UnixMilli()), Member: m.ID}
			n++
		}
		if err := client.ZAdd(ctx, due, scores...).Err(); err != nil {
			b.Fatal(err)
		}
	}
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{Client: server.Client(), Reader: server.Client(), ConsumerGroup: group}, nil)
	if err != nil {
		b.Fatal(err)
	}
	messages, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		b.Fatal(err)
	}
	if time.Now().After(begin) {
		b.Fatal("parking them took longer than there was time for")
	}
	late := make([]time.Duration, 0, some)
	for range some {
		m := <-messages
		late = append(late, time.Since(moments[delivery(b, m).Entry()]))
		go m.Ack()
	}
	if err := subscriber.Close(); err != nil {
		b.Fatal(err)
	}
	return late
}

func fill(b *testing.B, server *redistest.Server, n int) {
	b.Helper()
	client, ctx := server.Client(), context.Background()
	payload := make([]byte, 300)
	for n > 0 {
		batch := min(n, 1000)
		pipe := client.Pipeline()
		for i := range batch {
			pipe.Do(ctx, "XADD", topic, "*", redisstream.UUIDHeaderKey, fmt.Sprintf("m%d", i), "metadata", "", "payload", payload)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			b.Fatal(err)
		}
		n -= batch
	}
}
