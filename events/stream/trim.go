package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	trimAtOnce  = 10_000 // maximum entries per script call, so as not to block Redis for long
	trimCounted = 100    // maximum unsettled entries per call, which the script inspects one by one
	trimCalls   = 5_000  // maximum calls per stream and pass, so that a fast-growing stream does not delay the others
)

// Retention limits the length of a stream. Entries that every group has settled are removed when they are
// older than Keep. Other entries stay until the stream is longer than MaxLen.
type Retention struct {
	Topic string // the stream

	// Keep is the minimum age of a removed entry, settled or not, for late readers. MaxLen takes precedence.
	Keep time.Duration // default 10 min

	Age time.Duration // how long entries of a stream without groups are kept; default 7 days, at least Keep

	// MaxLen is the maximum number of entries. Removing an unsettled one is logged as an error, with its group.
	MaxLen int64 // default 1,000,000
}

// Trim is the result of one pass over one stream.
type Trim struct {
	Stream  string
	Dead    bool             // whether it is the dead stream
	Settled int64            // removed entries that every group had settled
	Aged    int64            // entries removed by age: of a stream without groups, or dead letters
	Capped  int64            // entries removed because the stream was too long or, of dead letters, too large
	Lost    map[string]int64 // how many of Capped each group had not settled
}

// Trimmer keeps streams from growing without bound. It removes entries that every group has settled, and unsettled ones
// only if a stream exceeds its maximum length. Any number of processes may trim the same streams. The cost of a pass is
// proportional to the number of groups and removed entries.
//
// Its fields are its configuration, and must not change once it is in use. Redis is required.
type Trimmer struct {
	Redis   redis.UniversalClient // never closed
	Prefix  string                // that of the Subscribers, for the dead stream
	Streams []Retention           // streams to trim, besides the dead stream

	DeadAge time.Duration // maximum age of a letter, default 30 days

	// DeadLen should be well below 100,000, which each new letter enforces without counting what goes.
	DeadLen   int64 // maximum number of letters, default 50,000
	DeadBytes int64 // maximum memory of all letters as estimated by Redis, but for the newest; default 256 MiB

	Every   time.Duration // trim interval, default 1 min
	Log     *slog.Logger  // default [slog.Default]
	Observe func(Trim)    // called for each trimmed stream, on the goroutine of Run; optional

	failing bool // the last pass failed
}

// init sets the defaults before a pass.
func (t *Trimmer) init() error {
	t.Prefix = cmp.Or(t.Prefix, string(events.DefaultNamespace))
	t.DeadAge = cmp.Or(t.DeadAge, 30*24*time.Hour)
	t.DeadLen = cmp.Or(t.DeadLen, 50_000)
	t.DeadBytes = cmp.Or(t.DeadBytes, 256<<20)
	t.Log = cmp.Or(t.Log, slog.Default())
	if t.Every <= 0 {
		t.Every = time.Minute
	}
	if t.Observe == nil {
		t.Observe = func(Trim) {}
	}
	switch {
	case t.Redis == nil:
		return errors.New("stream: Trimmer.Redis is required")
	case t.DeadAge < 0 || t.DeadLen < 0 || t.DeadBytes < 0:
		return errors.New("stream: DeadAge, DeadLen and DeadBytes cannot be negative")
	}
	streams := slices.Clone(t.Streams)
	for i := range streams {
		r := &streams[i]
		r.Keep = cmp.Or(r.Keep, 10*time.Minute)
		r.Age = max(cmp.Or(r.Age, 7*24*time.Hour), r.Keep)
		r.MaxLen = cmp.Or(r.MaxLen, 1_000_000)
		if r.Topic == "" || r.Keep < 0 || r.MaxLen < 0 {
			return fmt.Errorf("stream: a Retention needs a topic, and cannot be negative: %q", r.Topic)
		}
	}
	t.Streams = streams
	return nil
}

// Run trims at once and then at every interval until ctx is done. It logs a failure once, and the recovery.
func (t *Trimmer) Run(ctx context.Context) {
	for {
		t.report(ctx, t.Pass(ctx))
		select {
		case <-time.After(t.Every - rand.N(t.Every/8+1)): // spreads the passes of processes that start together
		case <-ctx.Done():
			return
		}
	}
}

func (t *Trimmer) report(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && !t.failing:
		t.Log.WarnContext(ctx, "cannot trim streams, will retry", "error", err)
	case err == nil && t.failing:
		t.Log.InfoContext(ctx, "stream trimming recovered")
	}
	t.failing = err != nil
}

// Pass trims each stream once. A failure on one stream does not affect the others. It must not be called concurrently,
// nor while Run is active.
func (t *Trimmer) Pass(ctx context.Context) error {
	if err := t.init(); err != nil {
		return err
	}
	errs := []error{t.trimDead(ctx)}
	for _, r := range t.Streams {
		errs = append(errs, t.trim(ctx, r))
	}
	return errors.Join(errs...)
}

func (t *Trimmer) trim(ctx context.Context, r Retention) error {
	total := Trim{Stream: r.Topic, Lost: make(map[string]int64)}
	var slowest, floor string
	var err error
	for range trimCalls {
		var step Trim
		var by, at string
		if step, by, at, err = t.step(ctx, r); err != nil {
			break
		}
		total.Settled += step.Settled
		total.Aged += step.Aged
		total.Capped += step.Capped
		for group, n := range step.Lost {
			total.Lost[group] += n
			slowest, floor = by, at
		}
		if step.Settled+step.Aged+step.Capped == 0 {
			break
		}
	}
	for group, n := range total.Lost {
		t.Log.ErrorContext(ctx, "stream is full: unsettled entries were dropped; start the group's consumers, "+
			"delete the group if it is unused, or raise the cap",
			"stream", r.Topic, "group", group, "dropped", n, "cap", r.MaxLen, "held_back_by", slowest, "held_back_at", floor)
	}
	t.Observe(total)
	if err != nil {
		return fmt.Errorf("trim %s: %w", r.Topic, err)
	}
	return nil
}

// step calls the script once. It also returns the group that holds back what is settled, and where.
func (t *Trimmer) step(ctx context.Context, r Retention) (s Trim, slowest, floor string, err error) {
	reply, err := trimScript.Run(ctx, t.Redis, []string{r.Topic},
		r.Keep.Milliseconds(), r.Age.Milliseconds(), r.MaxLen, trimAtOnce, trimCounted).Slice()
	if err == nil && len(reply) != 6 {
		err = fmt.Errorf("%w: %d parts", errReply, len(reply))
	}
	if err != nil {
		return Trim{}, "", "", err
	}
	s.Settled, _ = reply[0].(int64)
	s.Aged, _ = reply[1].(int64)
	s.Capped, _ = reply[2].(int64)
	slowest, _ = reply[3].(string)
	floor, _ = reply[4].(string)
	lost, _ := reply[5].([]any)
	s.Lost = make(map[string]int64, len(lost)/2)
	for i := 0; i+1 < len(lost); i += 2 {
		group, _ := lost[i].(string)
		s.Lost[group], _ = lost[i+1].(int64)
	}
	return s, slowest, floor, nil
}

// A call of trimDeadScript measures 10,000 letters in at most 2 ms, and frees 64 MiB in about 20 ms.
const (
	deadStep  = 64 << 20 // bytes
	deadCalls = 200      // of one pass
)

func (t *Trimmer) trimDead(ctx context.Context) error {
	dead := t.Prefix + "dead"
	var total [3]int64
	for range deadCalls {
		gone, err := trimDeadScript.Run(ctx, t.Redis, []string{dead}, t.DeadAge.Milliseconds(),
			t.DeadLen, t.DeadBytes, deadStep).Int64Slice()
		if err == nil && len(gone) != len(total) {
			err = fmt.Errorf("%w: %d parts", errReply, len(gone))
		}
		if err != nil {
			return fmt.Errorf("trim %s: %w", dead, err)
		}
		for i, n := range gone {
			total[i] += n
		}
		if gone[2] == 0 {
			break
		}
	}
	if total[0]+total[1]+total[2] > 0 {
		t.Log.WarnContext(ctx, "dead letters dropped: too old, too many or too large",
			"stream", dead, "too_old", total[0], "too_many", total[1], "too_large", total[2])
	}
	t.Observe(Trim{Stream: dead, Dead: true, Aged: total[0], Capped: total[1] + total[2]})
	return nil
}
