package locking

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	queueSuffix   = ":queue"
	waitersSuffix = ":waiters"
)

//go:embed lua
var lua embed.FS

var (
	acquireScript = script("clock", "queue", "acquire")
	releaseScript = script("clock", "queue", "release")
	renewScript   = script("clock", "renew")
	reclaimScript = script("clock", "reclaim")
	statusScript  = script("clock", "status")
	forceScript   = script("clock", "force")
)

// script joins files of the lua folder.
func script(names ...string) *redis.Script {
	source := ""
	for _, name := range names {
		part, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err)
		}
		source += string(part)
	}
	return redis.NewScript(source)
}

// verdict is Redis' reply about a token.
type verdict string

const (
	granted verdict = "granted" // the token owns the lease
	held    verdict = "held"    // another token owns the lease
	free    verdict = "free"    // the lease was released
	gone    verdict = "gone"    // the token did not own the lease
	late    verdict = "late"    // Redis ran the call after its deadline, without effect
)

type answer struct {
	verdict verdict
	reading reading
	fence   uint64
	since   int64 // time of the current grant by Redis' clock, µs
	expires int64 // by Redis' clock, µs
	rank    int64 // number of waiters ahead; -1 if not queued
	holder  Holder
}

// deadline returns when the lease ends by the local clock.
func (a answer) deadline() time.Time { return a.reading.when(a.expires) }

// reading relates Redis' clock to the local one. In an answer, local was read before Redis read its clock, so
// a local deadline computed from it is never too late. In a contact it was read after, so a deadline for
// Redis is never too late.
type reading struct {
	local time.Time
	redis int64 // µs
}

// when converts a time of Redis' clock to a local time that is not later.
func (r reading) when(micros int64) time.Time {
	return r.local.Add(time.Duration(micros-r.redis) * time.Microsecond)
}

// at is the inverse of when.
func (r reading) at(t time.Time) int64 { return r.redis + t.Sub(r.local).Microseconds() }

func (l *Locker) lockKey(key string) string { return l.cfg.Prefix + key }

// keysOf returns the keys of a lock.
func keysOf(lock string) []string { return []string{lock, lock + queueSuffix, lock + waitersSuffix} }

func (l *Locker) callAcquire(ctx context.Context, token string, req Request) (answer, error) {
	mode := "skip"
	if req.IfHeld == WaitInLine {
		mode = "wait"
	}
	return l.call(ctx, acquireScript, token, token, req, mode)
}

// callRelease releases token and, unless next is nil, requests the lease for next in the same call.
func (l *Locker) callRelease(ctx context.Context, key, token string, next *ticket) (answer, error) {
	if next == nil {
		return l.call(ctx, releaseScript, token, "", Request{Key: key}, "")
	}
	return l.call(ctx, releaseScript, token, next.token, next.requester.req, "")
}

// call runs a script with the arguments of queue.lua. req is the request that token is for.
func (l *Locker) call(
	ctx context.Context, script *redis.Script, token, wanted string, req Request, mode string,
) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	argv := make([]any, 1, 16)
	argv[0] = token
	argv = append(argv, l.terms...)
	argv = append(argv, wanted)
	before := time.Now()
	if wanted != "" {
		argv = append(argv, req.Floor, l.channel, l.cfg.Worker, req.Job, req.Operation, mode)
		deadline, _ := ctx.Deadline()
		late, lease, handed := l.contact.terms(before, deadline)
		argv = append(argv, late, req.mark(), lease, handed)
	}
	reply, err := script.Run(ctx, l.cfg.Redis, keysOf(l.lockKey(req.Key)), argv...).Slice()
	if err != nil {
		return answer{}, err
	}
	a, err := parseAnswer(before, reply)
	if err == nil {
		l.contact.note(time.Now(), a.reading.redis)
	}
	return a, err
}

// mark returns argument 14 of queue.lua.
func (r Request) mark() string {
	if r.IfHeld == Yield {
		return "yields"
	}
	return ""
}

// scriptTerms returns arguments 2 to 5 of queue.lua.
func scriptTerms(cfg Config) []any {
	counted := "1"
	if cfg.isCluster() {
		counted = "0"
	}
	return []any{cfg.Lease.Microseconds(), cfg.handover().Microseconds(), ticketLife.Microseconds(), counted}
}

func parseAnswer(before time.Time, reply []any) (answer, error) {
	if len(reply) == 0 {
		return answer{}, errors.New("empty reply")
	}
	text := func(i int) string { s, _ := reply[i].(string); return s }
	number := func(i int) int64 { n, _ := reply[i].(int64); return n }
	a := answer{verdict: verdict(text(0))}
	switch {
	case len(reply) == 1 && (a.verdict == free || a.verdict == gone):
		return a, nil
	case len(reply) == 2 && a.verdict == late:
		a.reading = reading{local: before, redis: number(1)}
		return a, nil
	case len(reply) == 4 && a.verdict == granted, len(reply) == 10 && a.verdict == held:
	default:
		return answer{}, fmt.Errorf("unexpected reply %q", reply)
	}
	a.reading = reading{local: before, redis: number(1)}
	a.fence, a.since, a.expires = uint64(number(2)), number(1), number(3)
	if a.verdict == held {
		a.rank = number(4)
		a.holder = Holder{
			Worker: text(6), Job: text(7), Operation: text(8), yields: number(9) == 1,
			Since: time.UnixMicro(number(5)), Fence: a.fence,
			Remaining: max(0, time.Duration(a.expires-number(1))*time.Microsecond),
		}
	}
	return a, nil
}

// parseMicros parses a number written by a script. A corrupted field counts as zero.
func parseMicros(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}
