package hosts

import (
	"context"
	_ "embed"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	hostInfix   = "host:" // after the prefix, followed by [Target.String]
	queueSuffix = ":queue"
	indexSuffix = "hosts"
	callTimeout = 2 * time.Second
	freshFor    = 500 * time.Millisecond // how long a process relies on what Redis has said, if nobody had to wait
)

// Reason is why a change must wait.
type Reason string

// The reasons.
const (
	AtLimit     Reason = "limit"        // as many requests are in flight, or changes wait, as the process may have
	RateLimit   Reason = "rate limit"   // the host has told the credential to wait
	NoAnswer    Reason = "no answer"    // the host does not answer
	ServerError Reason = "server error" // the host answers all with errors
	SlowStart   Reason = "slow start"   // a block has ended; the number of repositories doubles with each good answer
)

// classes has the classes of the faults of a host.
var classes = map[Reason]events.Class{
	RateLimit: events.ClassBusy, NoAnswer: events.ClassNetwork, ServerError: events.ClassServer,
}

//go:embed limiter.lua
var source string

var script = redis.NewScript(source)

// shared is what this process knows of the state of a target in Redis.
type shared struct {
	learned time.Time
	until   time.Time // end of its block
	reason  Reason
	allowed int64 // repositories at a time after a block; 0 for no limit
	waiting int64 // repositories
}

func (s shared) isBlocked() bool { return time.Now().Before(s.until) }

// isFree reports whether jobs may go on without a call.
func (s shared) isFree() bool {
	return !s.isBlocked() && s.allowed == 0 && s.waiting == 0 && time.Since(s.learned) < freshFor
}

// call runs the script. To op ask it returns the delay after which to ask again, 0 to go on, and whether the
// repository is one of those allowed after a block, and otherwise whether such a limit has begun or ended.
func (j *Job) call(ctx context.Context, t Target, op string, args ...any) (delay time.Duration, flag bool, err error) {
	l, kind := j.l, "push"
	if j.poll {
		kind = "poll"
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	keys := []string{l.cfg.Prefix + hostInfix + t.String(), l.cfg.Prefix + indexSuffix}
	values, err := script.Run(limited, l.cfg.Redis, keys, append([]any{0, t.String(), op, j.repo, kind}, args...)...).Slice()
	if err != nil {
		if ctx.Err() == nil && !l.away.Swap(true) { // else it says nothing of Redis
			l.cfg.Log.WarnContext(ctx, "limits of hosts not shared, redis failed", "error", err)
		}
		return 0, false, err
	}
	l.away.Store(false)
	number := func(i int) int64 { n, _ := values[i].(int64); return n }
	reason, _ := values[1].(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shared[t] = shared{
		learned: time.Now(), until: time.Now().Add(time.Duration(number(0)) * time.Millisecond), reason: Reason(reason),
		allowed: number(2), waiting: number(3),
	}
	return time.Duration(number(4)) * time.Millisecond, number(5) == 1, nil
}

// ask asks Redis whether it is the turn of the job's repository. The delay is 0 if so, and otherwise that after
// which to ask again.
func (j *Job) ask(ctx context.Context, p *place, room int) (delay time.Duration, err error) {
	delay, isShared, err := j.call(ctx, p.target, "ask", room, rand.N(30_000))
	if err != nil && ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	l := j.l
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shared[p.target]
	if err != nil && (room == 0 || s.isBlocked()) { // Redis is away, so this process keeps to the blocks that it knows
		delay = max(0, min(time.Until(s.until), time.Minute)) + time.Second
	}
	j.turn(p.target).shared = isShared
	if delay == 0 || isShared || !p.sent && delay <= patience && l.asleep.Load() < int64(l.cfg.Window/8) {
		return delay, nil
	}
	return 0, l.refused(p.target, delay)
}
