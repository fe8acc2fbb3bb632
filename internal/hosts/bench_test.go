package hosts_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lockstep/internal/hosts"
)

// BenchmarkEnterDone measures a permit's two round trips: without waiters, and with 10,000 waiters, where each Done wakes one.
func BenchmarkEnterDone(b *testing.B) {
	for _, waiting := range []int{0, 10_000} {
		b.Run(fmt.Sprint("waiting=", waiting), func(b *testing.B) {
			r := newRig(b, 1)
			p := r.processes[0]
			ctx := context.Background()
			var held []*hosts.Permit
			if waiting > 0 {
				for i := range 16 {
					held = append(held, p.granted(fmt.Sprint("held/", i), hosts.Push, ""))
				}
				for i := range waiting {
					p.refused(fmt.Sprint("waiting/", i), hosts.Push, "", hosts.AtLimit)
				}
			}
			repo := "a/b"
			for i := 0; b.Loop(); i++ {
				if waiting > 0 {
					p.refused(repo, hosts.Push, "", hosts.AtLimit) // goes to the end of the wait queue
					done(held[i%16], success)
					repo = p.popped()[0]
					held[i%16] = p.granted(repo, hosts.Push, "")
					continue
				}
				permit, err := p.Enter(ctx, request(b, repo, hosts.Push, ""))
				if err != nil {
					b.Fatal(err)
				}
				permit.Done(ctx, success)
			}
		})
	}
	b.Run("blocked in memory", func(b *testing.B) {
		p := newRig(b, 1).processes[0]
		p.once("a/b", "token", tooMany(time.Hour))
		for b.Loop() {
			if p.blocked("token") == nil {
				b.Fatal("not blocked")
			}
		}
	})
}
