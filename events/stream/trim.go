package stream

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// The scripts. The head of each file says what it takes, returns and refuses.
var (
	//go:embed trim.lua
	trimSource string
	//go:embed trim_dead.lua
	trimDeadSource string

	trimScript     = redis.NewScript(groupsSource + trimSource)
	trimDeadScript = redis.NewScript(trimDeadSource)
)

// One call of the script takes away at most so many entries, so as not to keep others waiting, and at
// most so many of those that a group may miss, which it has to look at one by one.
const (
	trimAtOnce  = 10_000
	trimCounted = 100
	trimCalls   = 5_000 // for one stream in one pass, lest one that grows faster keeps the others waiting
)

// Retention says how much of a stream is kept. What every group has settled goes when it is older than
// Keep; what some group has yet to settle stays until the stream is longer than MaxLen.
type Retention struct {
	Topic string // the stream

	// Keep is the least time that an entry is kept, settled or not, for those who look back: a waiter
	// that comes late, a settlement whose reply was lost. Only MaxLen comes first. Default 10 min.
	Keep time.Duration

	// Age is how long an entry is kept that no group is there to read. Default 7 days, at least Keep.
	Age time.Duration

	// MaxLen is how many entries are kept at most, whoever has yet to read them; default 1,000,000. Each
	// entry that goes unsettled is counted, and logged as an error with the group that held it back.
	MaxLen int64

	// MaxBytes is the memory, by Redis' estimate, above which an error is logged; nothing is taken away
	// for it. Default 1 GiB.
	MaxBytes int64
}

// TrimmerConfig says what a [Trimmer] works with. Redis is required.
type TrimmerConfig struct {
	Redis   redis.UniversalClient // never closed
	Prefix  string                // names the dead stream's default; default "lockstep:{0}:"
	Streams []Retention           // what to trim beside the dead stream

	Dead    string        // the dead stream, default Prefix + "dead"
	DeadAge time.Duration // how long a letter is kept, default 30 days

	// DeadLen is how many letters are kept at most, default 50,000. It is to be well below
	// SubscriberConfig.DeadCap, a bound that Redis keeps at once and that counts nothing.
	DeadLen int64

	Every   time.Duration // how often to trim, default 1 min
	Log     *slog.Logger  // default [slog.Default]
	Observe func(Trim)    // is told of each stream that was looked at, from the goroutine of Run
}

// Trim is what one pass over one stream came to.
type Trim struct {
	Stream  string
	Dead    bool             // it is the dead stream
	Settled int64            // entries taken away that every group had settled
	Aged    int64            // entries taken away for their age: of a stream that no group reads, or dead letters
	Capped  int64            // entries taken away because there were too many
	Lost    map[string]int64 // of the capped, how many each group had yet to settle
	Bytes   int64            // memory that the stream takes, by Redis' estimate; -1 when it cannot tell, and of the dead stream
}

// Trimmer keeps streams from growing without end: it takes away what every group has settled, never
// what one has yet to settle, unless a stream outgrows its cap. Any number of processes may run one on
// the same streams; each pass is a few calls of a script that costs the number of groups and of the
// entries taken away.
type Trimmer struct {
	cfg     TrimmerConfig
	failing bool            // the last pass did
	large   map[string]bool // streams whose alarm has gone off
}

// NewTrimmer makes a Trimmer.
func NewTrimmer(cfg TrimmerConfig) (*Trimmer, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, string(events.DefaultNamespace))
	cfg.Dead = cmp.Or(cfg.Dead, cfg.Prefix+"dead")
	cfg.DeadAge = cmp.Or(cfg.DeadAge, 30*24*time.Hour)
	cfg.DeadLen = cmp.Or(cfg.DeadLen, 50_000)
	cfg.Every = cmp.Or(cfg.Every, time.Minute)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Observe == nil {
		cfg.Observe = func(Trim) {}
	}
	switch {
	case cfg.Redis == nil:
		return nil, errors.New("stream: TrimmerConfig.Redis is required")
	case cfg.Every < 0 || cfg.DeadAge < 0 || cfg.DeadLen < 0:
		return nil, errors.New("stream: Every, DeadAge and DeadLen cannot be negative")
	}
	streams := make([]Retention, len(cfg.Streams))
	for i, r := range cfg.Streams {
		r.Keep = cmp.Or(r.Keep, 10*time.Minute)
		r.Age = max(cmp.Or(r.Age, 7*24*time.Hour), r.Keep)
		r.MaxLen = cmp.Or(r.MaxLen, 1_000_000)
		r.MaxBytes = cmp.Or(r.MaxBytes, 1<<30)
		if r.Topic == "" || r.Keep < 0 || r.MaxLen < 0 || r.MaxBytes < 0 {
			return nil, fmt.Errorf("stream: a Retention needs a topic, and cannot be negative: %q", r.Topic)
		}
		streams[i] = r
	}
	cfg.Streams = streams
	return &Trimmer{cfg: cfg, large: make(map[string]bool)}, nil
}

// Run trims at once and then ever again until ctx is done. While Redis is away it says so once.
func (t *Trimmer) Run(ctx context.Context) {
	for {
		t.report(ctx, t.Pass(ctx))
		// Spread, so that processes that start together do not all come at once.
		timer := time.NewTimer(t.cfg.Every - rand.N(t.cfg.Every/8+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// report logs that passes fail, and that they do so no more.
func (t *Trimmer) report(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && !t.failing:
		t.cfg.Log.WarnContext(ctx, "streams are not trimmed for now", "error", err)
	case err == nil && t.failing:
		t.cfg.Log.InfoContext(ctx, "streams are trimmed again")
	}
	t.failing = err != nil
}

// Pass trims each stream once. A stream that fails does not keep the others from it. It is not for use
// beside Run, nor by two goroutines at once.
func (t *Trimmer) Pass(ctx context.Context) error {
	errs := []error{t.trimDead(ctx)}
	for _, r := range t.cfg.Streams {
		errs = append(errs, t.trim(ctx, r))
	}
	return errors.Join(errs...)
}

func (t *Trimmer) trim(ctx context.Context, r Retention) error {
	total := Trim{Stream: r.Topic, Lost: make(map[string]int64)}
	var slowest, floor string
	var err error
	for range trimCalls {
		var step trimStep
		if step, err = t.step(ctx, r); err != nil {
			break
		}
		total.Settled += step.served
		total.Aged += step.aged
		total.Capped += step.capped
		for group, n := range step.lost {
			total.Lost[group] += n
		}
		if len(step.lost) > 0 {
			slowest, floor = step.slowest, step.floor
		}
		if step.served+step.aged+step.capped == 0 {
			break
		}
	}
	for group, n := range total.Lost {
		t.cfg.Log.ErrorContext(ctx, "stream is full: entries are gone that a group had yet to settle; start its consumers, "+
			"delete a group that is not used any more, or raise the cap",
			"stream", r.Topic, "group", group, "dropped", n, "cap", r.MaxLen, "held_back_by", slowest, "held_back_at", floor)
	}
	total.Bytes = t.memoryUsage(ctx, r)
	t.cfg.Observe(total)
	if err != nil {
		return fmt.Errorf("trim %s: %w", r.Topic, err)
	}
	return nil
}

// trimmed is what the script returns.
type trimStep struct {
	served, aged, capped int64
	slowest, floor       string
	lost                 map[string]int64
}

func (t *Trimmer) step(ctx context.Context, r Retention) (trimStep, error) {
	reply, err := trimScript.Run(ctx, t.cfg.Redis, []string{r.Topic},
		r.Keep.Milliseconds(), r.Age.Milliseconds(), r.MaxLen, trimAtOnce, trimCounted).Slice()
	if err != nil {
		return trimStep{}, err
	}
	if len(reply) != 6 {
		return trimStep{}, fmt.Errorf("%w: %d parts", errReply, len(reply))
	}
	var s trimStep
	s.served, _ = reply[0].(int64)
	s.aged, _ = reply[1].(int64)
	s.capped, _ = reply[2].(int64)
	s.slowest, _ = reply[3].(string)
	s.floor, _ = reply[4].(string)
	lost, _ := reply[5].([]any)
	s.lost = make(map[string]int64, len(lost)/2)
	for i := 0; i+1 < len(lost); i += 2 {
		group, _ := lost[i].(string)
		s.lost[group], _ = lost[i+1].(int64)
	}
	return s, nil
}

// weigh estimates the stream's memory and says when it grows beyond what is set, and when it is back.
func (t *Trimmer) memoryUsage(ctx context.Context, r Retention) int64 {
	bytes := memoryUsage(ctx, t.cfg.Redis, r.Topic)
	switch large := bytes > r.MaxBytes; {
	case large && !t.large[r.Topic]:
		t.large[r.Topic] = true
		t.cfg.Log.ErrorContext(ctx, "stream takes too much memory; nothing is taken away for it",
			"stream", r.Topic, "bytes", bytes, "alarm_above", r.MaxBytes)
	case !large && bytes >= 0 && t.large[r.Topic]:
		delete(t.large, r.Topic)
		t.cfg.Log.InfoContext(ctx, "stream takes no more memory than is set", "stream", r.Topic, "bytes", bytes)
	}
	return bytes
}

// weigh is the memory that a stream takes by Redis' estimate of a few samples; -1 when Redis does not
// say, as the embedded one and one that forbids the command.
func memoryUsage(ctx context.Context, client redis.UniversalClient, topic string) int64 {
	bytes, err := client.MemoryUsage(ctx, topic, 5).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return 0
	case err != nil:
		return -1
	}
	return bytes
}

func (t *Trimmer) trimDead(ctx context.Context) error {
	gone, err := trimDeadScript.Run(ctx, t.cfg.Redis, []string{t.cfg.Dead}, t.cfg.DeadAge.Milliseconds(), t.cfg.DeadLen).Int64Slice()
	if err == nil && len(gone) != 2 {
		err = fmt.Errorf("%w: %d parts", errReply, len(gone))
	}
	if err != nil {
		return fmt.Errorf("trim %s: %w", t.cfg.Dead, err)
	}
	if gone[0]+gone[1] > 0 {
		t.cfg.Log.WarnContext(ctx, "dead letters are dropped: nobody retried them in time",
			"stream", t.cfg.Dead, "too_old", gone[0], "too_many", gone[1])
	}
	t.cfg.Observe(Trim{Stream: t.cfg.Dead, Dead: true, Aged: gone[0], Capped: gone[1], Bytes: -1})
	return nil
}
