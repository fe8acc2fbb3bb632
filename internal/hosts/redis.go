package hosts

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	hostInfix   = "host:" // after the prefix, followed by [Target.String]
	indexSuffix = "hosts"
	callTimeout = 2 * time.Second
	awayFor     = time.Second
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
	SlowStart   Reason = "slow start"   // a block has ended; the number of jobs doubles with each good answer
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
	allowed int64 // jobs at a time after a block; 0 for no limit
	waiting int64 // repositories
	passed  int   // changes let in since the last call
}

func (s *shared) isBlocked() bool { return time.Now().Before(s.until) }

// isFree reports whether jobs may go on without a call.
func (s *shared) isFree() bool {
	return !s.isBlocked() && s.allowed == 0 && s.waiting == 0 && time.Since(s.learned) < freshFor
}

func (l *Limiter) sharedOf(t Target) *shared {
	if l.shared[t] == nil {
		l.shared[t] = &shared{}
	}
	return l.shared[t]
}

// block stores a block, and sends away the jobs that wait for the target.
func (l *Limiter) block(t Target, reason Reason, until time.Time) {
	s, h := l.sharedOf(t), l.hostOf(t.Host)
	s.until, s.reason = until, reason
	for i := len(h.queue) - 1; i >= 0; i-- {
		if h.queue[i].target == t {
			l.dequeue(h, i).ready <- false
		}
	}
}

// reply is that of the script to a job.
type reply struct {
	left  time.Duration // until the end of the block
	news  bool          // a block has begun or ended
	delay time.Duration // 0 to go on
	here  bool          // wait in the process
	age   time.Duration // since the repository began to wait
	mine  bool          // the job is one of those allowed after a block
}

// call runs the script. After Redis has failed to answer it fails at once, for a second.
func (j *Job) call(ctx context.Context, t Target, op, repo string, args ...any) (r reply, err error) {
	l, kind := j.l, map[bool]string{true: "poll", false: "push"}[j.poll]
	l.mu.Lock()
	if time.Now().Before(l.away) {
		l.mu.Unlock()
		return r, errors.New("redis did not answer recently")
	}
	s := l.sharedOf(t)
	passed := s.passed
	s.passed = 0 // calls run concurrently, and only one may report them
	args = append([]any{0, t.String(), op, j.token, repo, kind, time.Since(j.turn(t).since).Milliseconds(), passed},
		args...)
	l.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	keys := []string{l.cfg.Prefix + hostInfix + t.String(), l.cfg.Prefix + indexSuffix}
	values, err := script.Run(limited, l.cfg.Redis, keys, args...).Slice()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		s.passed += passed
	}
	if err != nil && ctx.Err() != nil { // says nothing of Redis
		return r, err
	}
	if err != nil {
		if l.away.IsZero() {
			l.cfg.Log.WarnContext(ctx, "limits of hosts not shared, redis failed", "error", err)
		}
		l.away = time.Now().Add(awayFor)
		return r, err
	}
	l.away = time.Time{}
	number := func(i int) int64 { n, _ := values[i].(int64); return n }
	millis := func(i int) time.Duration { return time.Duration(number(i)) * time.Millisecond }
	s.learned, s.until, s.allowed, s.waiting = time.Now(), time.Time{}, number(2), number(3)
	if left := millis(0); left > 0 {
		reason, _ := values[1].(string)
		l.block(t, Reason(reason), time.Now().Add(left))
	}
	return reply{millis(0), number(4) == 1, millis(5), number(6) == 1, millis(7), number(8) == 1}, nil
}
