package hosts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Advance moves the clock of b, and of its scripts, forward.
func Advance(b *Budgets, d time.Duration) { b.offset.Add(d.Milliseconds()) }

// Now returns the clock of b.
func Now(b *Budgets) time.Time { return b.now() }

// Pump does once what Run does repeatedly, except renewals.
func Pump(ctx context.Context, b *Budgets) {
	b.pump(ctx)
	b.wakeUp(ctx)
	b.expireKept(ctx)
}

// Flush calls Config.Wake for the repositories that have a permit reserved.
func Flush(ctx context.Context, b *Budgets) { b.wakeUp(ctx) }

// Renew renews the permits of b.
func Renew(ctx context.Context, b *Budgets) { b.renew(ctx) }

// Classify returns the outcome of an answer, and the delay that the host asks for.
func Classify(a Answer, now time.Time) (Outcome, time.Duration) {
	r := a.classify(now)
	return r.outcome, r.retryAfter
}

// Permits returns the number of permits counted by b.
func Permits(b *Budgets) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.permits)
}

// List returns the state of the hosts, with the settings and the clock of b.
func (b *Budgets) List(ctx context.Context) ([]Host, error) {
	return b.reader().List(ctx)
}

// Clear lifts blocks, with the settings and the clock of b.
func (b *Budgets) Clear(ctx context.Context, host string, credential *string) ([]Lifted, error) {
	return b.reader().Clear(ctx, host, credential)
}

func (b *Budgets) reader() Reader {
	r := Reader{Prefix: b.cfg.Prefix, Limit: b.cfg.Limit, Overrides: b.cfg.Overrides, offset: b.offset.Load()}
	r.Redis, _ = b.cfg.Redis.(redis.UniversalClient)
	return r
}
