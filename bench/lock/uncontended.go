package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
	"lockstep/locking"
)

// A minimal lock with a fence: rawLock sets the key if it is absent and returns the next fence, or 0; rawUnlock deletes the
// key if it has the given token.
var (
	rawLock = redis.NewScript(`
		if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
		return redis.call('INCR', KEYS[2])`)
	rawUnlock = redis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('DEL', KEYS[1])`)
)

// pairs compares acquire and release through a Locker with the raw scripts.
type pairs struct {
	Goroutines int     `json:"goroutines"`
	Locker     float64 `json:"locker_pairs_per_second"`
	Raw        float64 `json:"raw_pairs_per_second"`
	Ratio      float64 `json:"ratio"` // median of the rounds' ratios
}

// PairsReport compares both kinds of pairs.
type PairsReport struct {
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"duration_ns"`
	Rows     []pairs       `json:"rows"`
}

// runUncontended measures both kinds of pairs in turn, with 1 and with 16 goroutines.
func (b *bench) runUncontended(ctx context.Context, env *rig.Env, server *rig.Redis, key string) (rig.Report, error) {
	locker, closeLocker, err := openLocker(ctx, server.Server, leaseTime)
	if err != nil {
		return nil, err
	}
	defer closeLocker()
	env.Cleanup(func() { server.Clear(ctx, benchPrefix+key) })
	raw := &rawPairs{client: server.Open()} // configured like the Locker's client
	defer raw.client.Close()
	ours := func(ctx context.Context, key string) error {
		lease, err := locker.Acquire(ctx, locking.Request{Key: key, Operation: "bench"})
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}
	report := PairsReport{Rounds: b.rounds, Duration: b.duration}
	both := []func(context.Context, string) error{ours, raw.pair}
	for _, goroutines := range []int{1, 16} {
		for _, pair := range both { // warm-up
			if _, err := pairsPerSecond(ctx, goroutines, rig.WarmUp, key, pair); err != nil {
				return nil, err
			}
		}
		var rates [2][]float64
		var ratios []float64
		for round := range b.rounds {
			env.Progress("round %d of %d: %d goroutines", round+1, b.rounds, goroutines)
			for i, pair := range both {
				rate, err := pairsPerSecond(ctx, goroutines, b.duration, key, pair)
				if err != nil {
					return nil, err
				}
				rates[i] = append(rates[i], rate)
			}
			ratios = append(ratios, rates[0][round]/rates[1][round])
		}
		report.Rows = append(report.Rows, pairs{goroutines, stats.Median(rates[0]), stats.Median(rates[1]), stats.Median(ratios)})
	}
	return report, nil
}

// pairsPerSecond repeats pair in several goroutines, each with its own key.
func pairsPerSecond(ctx context.Context, goroutines int, d time.Duration, key string, pair func(context.Context, string) error) (float64, error) {
	var count atomic.Int64
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i := range goroutines {
		g.Go(func() error {
			n := int64(0)
			for ; time.Since(began) < d; n++ {
				if err := pair(ctx, goroutineKey(key, i)); err != nil {
					return err
				}
			}
			count.Add(n)
			return nil
		})
	}
	err := g.Wait()
	return float64(count.Load()) / time.Since(began).Seconds(), err
}

func goroutineKey(key string, i int) string { return key + ":" + strconv.Itoa(i) }

// rawPairs locks and unlocks with the raw scripts.
type rawPairs struct {
	client redis.UniversalClient
	tokens atomic.Int64
}

func (r *rawPairs) pair(ctx context.Context, key string) error {
	key = benchPrefix + key + ":raw"
	keys, token := []string{key, key + ":fence"}, strconv.FormatInt(r.tokens.Add(1), 36)
	fence, err := rawLock.Run(ctx, r.client, keys, token, leaseTime.Milliseconds()).Int64()
	if err != nil {
		return err
	}
	deleted, err := rawUnlock.Run(ctx, r.client, keys[:1], token).Int64()
	if err != nil {
		return err
	}
	if fence == 0 || deleted == 0 {
		return errors.New("an uncontended key was held, or had another token")
	}
	return nil
}

// Table prints the report as text.
func (r PairsReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "pairs of acquire and release, each goroutine on its own key; rounds: %d of %v, medians\n\n", r.Rounds, r.Duration)
	tw := rig.NewTable(w)
	fmt.Fprintln(tw, "goroutines\tpairs/s\traw scripts, pairs/s\tratio\t")
	for _, row := range r.Rows {
		fmt.Fprintf(tw, "%d\t%.0f\t%.0f\t%.2f\t\n", row.Goroutines, row.Locker, row.Raw, row.Ratio)
	}
	return tw.Flush()
}
