package stream_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// BenchmarkSubscriber measures a handler that does nothing, beside the stock subscriber.
func BenchmarkSubscriber(b *testing.B) {
	for name, build := range map[string]func(*redistest.Server) (message.Subscriber, error){
		"lockstep": func(s *redistest.Server) (message.Subscriber, error) {
			return stream.NewSubscriber(stream.SubscriberConfig{Redis: s.Client(), Reader: s.Client(), Group: group})
		},
		"stock": func(s *redistest.Server) (message.Subscriber, error) {
			return redisstream.NewSubscriber(redisstream.SubscriberConfig{Client: s.Client(), ConsumerGroup: group}, watermill.NopLogger{})
		},
	} {
		b.Run(name, func(b *testing.B) {
			server := redistest.Start(b)
			fill(b, server, b.N)
			subscriber, err := build(server)
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			messages, err := subscriber.Subscribe(context.Background(), topic)
			if err != nil {
				b.Fatal(err)
			}
			for range b.N {
				m := <-messages
				go m.Ack()
			}
			if err := subscriber.Close(); err != nil { // with the last acknowledgements
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
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
