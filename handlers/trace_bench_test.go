package handlers_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/redistest"
	"lockstep/locking"
	"lockstep/router"
)

// nowhere discards spans: the benchmark excludes the cost of sending them.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }

func (nowhere) Shutdown(context.Context) error { return nil }

// cpuTime is the CPU time of this process. Other load on the machine hardly affects it.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkTraced measures changes of distinct repositories, each with its lease, a result and the settlement,
// without traces, with all of them recorded, and with one in a hundred.
func BenchmarkTraced(b *testing.B) {
	for _, tc := range []struct {
		name    string
		sampler sdktrace.Sampler
	}{{"off", nil}, {"all", sdktrace.AlwaysSample()}, {"one in a hundred", sdktrace.TraceIDRatioBased(0.01)}} {
		b.Run(tc.name, func(b *testing.B) {
			server := redistest.Start(b)
			client := server.Client()
			var tracer trace.Tracer
			if tc.sampler != nil {
				provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}), sdktrace.WithSampler(tc.sampler))
				defer func() { _ = provider.Shutdown(context.Background()) }()
				tracer = provider.Tracer("bench")
			}
			locker, err := locking.New(locking.Config{Redis: client, Prefix: prefix + "lock:", Log: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			n := newSignal(b.N)
			changes := &handlers.Changes{Namespace: events.DefaultNamespace, Log: quiet(), Handler: func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
				job.Progress(events.Progress{Phase: events.PhaseList})
				return handlers.Outcome{Result: job.Result(events.ResultSynced)}, nil
			}}
			sub, err := stream.NewSubscriber(stream.SubscriberConfig{Client: client, Prefix: prefix, ConsumerGroup: "workers", Key: changes.Key, Log: quiet()}, nil)
			if err != nil {
				b.Fatal(err)
			}
			pipe := client.Pipeline()
			for i := range b.N {
				pipe.Do(b.Context(), "XADD", topic, "*", redisstream.UUIDHeaderKey, fmt.Sprint("m", i), "metadata", "",
					"payload", fmt.Sprintf(`{"url":"https://example.com/acme/w%d.git"}`, i))
			}
			if _, err := pipe.Exec(b.Context()); err != nil {
				b.Fatal(err)
			}
			r, err := router.New(router.Config{Log: quiet(), Routes: []router.Route{{Name: "changes", Topic: topic, Subscriber: sub, Tracer: tracer,
				Locker: locker, Request: changes.Request, Dispose: changes.Dispose(router.Retry{}),
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					defer n.one()
					return changes.Handle(msg)
				}}}})
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			before := cpuTime()
			go func() { _ = r.Run(context.Background()) }()
			<-n.all
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-µs/change")
			b.StopTimer()
			_ = r.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = locker.Close(ctx)
		})
	}
}
