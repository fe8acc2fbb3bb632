package watch_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/watch"
)

func BenchmarkAccept(b *testing.B) {
	r := newBench(b)
	docs := of(b, "docs", "acme/widgets", "")
	r.put(docs)
	versions := r.versions("acme/widgets")
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprint("gh/", i)
		if verdict := r.accept(watch.Delivery{Source: "gh", ID: id, Versions: versions, Changes: []events.Change{pushed(b, docs, id)}}); verdict != watch.Accepted {
			b.Fatal(verdict)
		}
	}
}

// BenchmarkXAdd is the baseline for BenchmarkAccept: one XADD without checks.
func BenchmarkXAdd(b *testing.B) {
	r := newBench(b)
	docs := of(b, "docs", "acme/widgets", "")
	for i := 0; b.Loop(); i++ {
		payload, err := pushed(b, docs, fmt.Sprint("gh/", i)).MarshalJSON()
		if err != nil {
			b.Fatal(err)
		}
		if err := r.client.XAdd(context.Background(), &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []any{"payload", payload}}).Err(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOf(b *testing.B) {
	for _, n := range []int{1, 3, 100} {
		b.Run(fmt.Sprint(n, " watches"), func(b *testing.B) {
			r := newBench(b)
			for i := range n {
				r.put(of(b, fmt.Sprint("app", i), "acme/widgets", "main"))
			}
			for b.Loop() {
				r.set("acme/widgets")
			}
		})
	}
}

// BenchmarkByRemote finds the watches of a remote that is synced to several paths.
func BenchmarkByRemote(b *testing.B) {
	for _, n := range []int{0, 1, 3, 100} {
		b.Run(fmt.Sprint(n, " paths"), func(b *testing.B) {
			const remote = "https://example.com/acme/widgets"
			r := newBench(b)
			for i := range n {
				r.put(at(b, "docs", fmt.Sprint("mirror/w", i), remote, ""))
			}
			for b.Loop() {
				r.byRemote(remote)
			}
		})
	}
}

// BenchmarkEnqueueDue queues polls of 10,000 repositories that are due at the same time.
func BenchmarkEnqueueDue(b *testing.B) {
	const repos = 10_000
	r := newBench(b)
	for i := range repos {
		r.put(of(b, "docs", fmt.Sprint("acme/r", i), ""))
	}
	for b.Loop() {
		b.StopTimer()
		r.drain()
		for i := range repos {
			r.ago(fmt.Sprint("acme/r", i), time.Hour)
		}
		b.StartTimer()
		queued := 0
		for next := time.Duration(0); next == 0; {
			var n int
			n, next = r.enqueueDue(1000, 30*time.Minute)
			queued += n
		}
		if queued != repos {
			b.Fatalf("%d queued", queued)
		}
	}
}
