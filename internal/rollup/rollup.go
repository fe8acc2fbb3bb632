package rollup

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Outcome is the outcome of a change.
type Outcome int

// The outcomes that are counted separately.
const (
	Synced Outcome = iota
	Unchanged
	Failed
	Other
	Outcomes
)

const (
	// Bins is the number of bins of latencies, from 1 ms to 4 h. Percentiles are accurate to about 22 %.
	Bins   = 42
	growth = 1.5 // ratio of the bounds of adjacent bins

	flushEvery   = 10 * time.Second
	flushTimeout = 5 * time.Second
)

// resolution is a length of buckets and how they are kept.
type resolution struct {
	name    string
	step    time.Duration
	hash    time.Duration // of time in a hash
	expires time.Duration // after the last write
}

var resolutions = [...]resolution{
	{"minutes", time.Minute, time.Hour, 6 * time.Hour},
	{"tens", 10 * time.Minute, 24 * time.Hour, 7 * 24 * time.Hour},
}

// key returns the hash and the first part of the fields of the bucket at a time.
func (r resolution) key(namespace events.Namespace, at time.Time) (hash, bucket string) {
	start := at.UTC().Truncate(r.hash)
	return string(namespace) + "rollup:" + r.name + ":" + start.Format("2006-01-02T15"), strconv.Itoa(int(at.Sub(start) / r.step))
}

// Fields of a hash: "{bucket}:up", "{bucket}:c{outcome}" and "{bucket}:d{bin}".
const (
	upField    = ":up"
	countField = ":c"
	delayField = ":d"
)

type bucket struct {
	counts [Outcomes]int64
	delays [Bins]int64
}

// Recorder counts the changes that a process settles. It is safe for concurrent use.
type Recorder struct {
	redis     redis.UniversalClient
	namespace events.Namespace

	mu      sync.Mutex
	pending map[time.Time]*bucket // by minute
}

// NewRecorder returns a Recorder, which records while [Recorder.Run] runs.
func NewRecorder(client redis.UniversalClient, namespace events.Namespace) *Recorder {
	return &Recorder{redis: client, namespace: namespace, pending: map[time.Time]*bucket{}}
}

// Count counts a change. A negative delay means that its latency is unknown.
func (r *Recorder) Count(outcome Outcome, delay time.Duration) { r.count(time.Now(), outcome, delay) }

func (r *Recorder) count(at time.Time, outcome Outcome, delay time.Duration) {
	minute := at.UTC().Truncate(time.Minute)
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.pending[minute]
	if b == nil {
		b = &bucket{}
		r.pending[minute] = b
	}
	b.counts[outcome]++
	if delay >= 0 {
		b.delays[bin(delay)]++
	}
}

func bin(delay time.Duration) int {
	ms := float64(delay) / float64(time.Millisecond)
	if ms <= 1 {
		return 0
	}
	return min(Bins-1, int(math.Log(ms)/math.Log(growth))+1)
}

// Run adds the counts to those in Redis until ctx is done, and then once more.
func (r *Recorder) Run(ctx context.Context) {
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		_ = r.flush(ctx, time.Now()) // an outage is logged by others
		select {
		case <-ctx.Done():
			_ = r.flush(ctx, time.Now())
			return
		case <-ticker.C:
		}
	}
}

// flush adds the counts to Redis. It is not retried, because a failed call may have added them.
func (r *Recorder) flush(ctx context.Context, now time.Time) error {
	r.mu.Lock()
	pending := r.pending
	r.pending = map[time.Time]*bucket{}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout) // it would lose the counts
	defer cancel()
	_, err := r.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, res := range resolutions {
			hash, bucket := res.key(r.namespace, now)
			pipe.HSet(ctx, hash, bucket+upField, 1)
			pipe.Expire(ctx, hash, res.expires)
			for minute, b := range pending {
				r.add(ctx, pipe, res, minute, b)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record counts: %w", err)
	}
	return nil
}

func (r *Recorder) add(ctx context.Context, pipe redis.Pipeliner, res resolution, minute time.Time, b *bucket) {
	hash, bucket := res.key(r.namespace, minute)
	pipe.HSet(ctx, hash, bucket+upField, 1)
	pipe.Expire(ctx, hash, res.expires)
	for i, n := range b.counts {
		if n > 0 {
			pipe.HIncrBy(ctx, hash, bucket+countField+strconv.Itoa(i), n)
		}
	}
	for i, n := range b.delays {
		if n > 0 {
			pipe.HIncrBy(ctx, hash, bucket+delayField+strconv.Itoa(i), n)
		}
	}
}
