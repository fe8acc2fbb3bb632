package locking

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotHeld: the lease with that fence is not held.
var ErrNotHeld = errors.New("lease is not held")

const (
	maxWaiters  = 1000 // listed in a Status
	scanBatch   = 1000
	statusBatch = 100 // locks per request
)

// forcedDelay is how long a lease released by force stays unavailable, so that its holder can notice. Only the fence
// protects against a holder that does not notice.
const forcedDelay = 2 * time.Second

// Inspector shows holders and waiters of all Lockers with its prefix, and releases leases by force. It
// holds no leases itself. It is safe for concurrent use.
type Inspector struct {
	redis  redis.UniversalClient
	prefix string
}

// NewInspector returns an Inspector of the Lockers with a prefix, by default "{lock}:". The client is never closed.
func NewInspector(client redis.UniversalClient, prefix string) *Inspector {
	return &Inspector{client, cmp.Or(prefix, "{lock}:")}
}

// Status is the state of a lock at one moment.
type Status struct {
	Key     string
	Held    bool
	Holder  Holder   // zero if not held
	Fence   uint64   // fence of the last grant, whether still held or not; 0 if there was none
	Waiters []Waiter // waiting processes in order, at most 1,000
}

// Waiter is a waiting process, and the request that will receive its grant.
type Waiter struct{ Worker, Job, Operation string }

// Status reads the lock of key. A key that was never requested is not held.
func (i *Inspector) Status(ctx context.Context, key string) (Status, error) {
	return statusOf(key, statusScript.Run(ctx, i.redis, keysOf(i.prefix+key), maxWaiters))
}

// statuses reads many locks in one request, each at a slightly different moment.
func (i *Inspector) statuses(ctx context.Context, locks []string) ([]Status, error) {
	replies := make([]*redis.Cmd, len(locks))
	pipe := i.redis.Pipeline()
	for n, lock := range locks {
		replies[n] = statusScript.Eval(ctx, pipe, keysOf(lock), maxWaiters)
	}
	_, _ = pipe.Exec(ctx) // each reply contains its own error
	all := make([]Status, len(locks))
	for n, lock := range locks {
		var err error
		if all[n], err = statusOf(strings.TrimPrefix(lock, i.prefix), replies[n]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func statusOf(key string, cmd *redis.Cmd) (Status, error) {
	reply, err := cmd.StringSlice()
	if err != nil {
		return Status{}, fmt.Errorf("status of %s: %w", key, err)
	}
	if len(reply) < 8 {
		return Status{}, fmt.Errorf("status of %s: unexpected reply %q", key, reply)
	}
	now, expires := parseMicros(reply[0]), parseMicros(reply[2])
	s := Status{Key: key, Held: reply[1] != "" && expires > now, Fence: uint64(parseMicros(reply[3]))}
	if s.Held {
		s.Holder = Holder{
			Worker: reply[5], Job: reply[6], Operation: reply[7], Fence: s.Fence,
			Since: time.UnixMicro(parseMicros(reply[4])), Remaining: time.Duration(expires-now) * time.Microsecond,
		}
	}
	for _, ticket := range reply[8:] {
		var w Waiter
		if json.Unmarshal([]byte(ticket), &w) == nil { // skip a corrupted record
			s.Waiters = append(s.Waiters, w)
		}
	}
	return s, nil
}

// List returns the locks that are held, sorted by key. It scans all keys of Redis, a thousand at a time, and
// is meant for interactive use. Locks may change during the scan.
func (i *Inspector) List(ctx context.Context) ([]Status, error) {
	var held []Status
	err := i.scan(ctx, func(locks []string) error {
		owned, err := i.owned(ctx, locks)
		if err != nil {
			return err
		}
		for batch := range slices.Chunk(owned, statusBatch) {
			some, err := i.statuses(ctx, batch)
			if err != nil {
				return err
			}
			held = append(held, slices.DeleteFunc(some, func(s Status) bool { return !s.Held })...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	slices.SortFunc(held, func(a, b Status) int { return cmp.Compare(a.Key, b.Key) })
	return slices.CompactFunc(held, func(a, b Status) bool { return a.Key == b.Key }), nil // a scan may repeat keys
}

// owned returns those of many locks that have an owner, whose lease may have expired.
func (i *Inspector) owned(ctx context.Context, locks []string) (owned []string, err error) {
	replies := make([]*redis.StringCmd, len(locks))
	_, _ = i.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n, lock := range locks {
			replies[n] = pipe.HGet(ctx, lock, "owner")
		}
		return nil // each reply has its own error
	})
	for n, reply := range replies {
		switch err := reply.Err(); {
		case err == nil:
			owned = append(owned, locks[n])
		case !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE"): // not a lock
			return nil, err
		}
	}
	return owned, nil
}

// scan calls fn with batches of keys that may be locks.
func (i *Inspector) scan(ctx context.Context, fn func(locks []string) error) error {
	var node redis.Cmdable = i.redis
	if cluster, ok := i.redis.(*redis.ClusterClient); ok {
		master, err := cluster.MasterForKey(ctx, i.prefix) // the hash tag puts all keys on one master
		if err != nil {
			return err
		}
		node = master
	}
	pattern := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(i.prefix) + "*"
	for cursor := uint64(0); ; {
		keys, next, err := node.Scan(ctx, cursor, pattern, scanBatch).Result()
		if err != nil {
			return err
		}
		keys = slices.DeleteFunc(keys, func(key string) bool {
			return strings.HasSuffix(key, queueSuffix) || strings.HasSuffix(key, waitersSuffix)
		})
		if len(keys) > 0 {
			if err := fn(keys); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// ForceRelease releases the lease with this fence and returns its former holder, whose context is cancelled with cause
// ErrLost. After two seconds the first waiter gets the lease, with a higher fence. ForceRelease returns
// ErrNotHeld if the lease with that fence is not held any more.
func (i *Inspector) ForceRelease(ctx context.Context, key string, fence uint64) (Holder, error) {
	former, err := forceScript.Run(ctx, i.redis, []string{i.prefix + key},
		strconv.FormatUint(fence, 10), forcedDelay.Microseconds()).StringSlice()
	switch {
	case err != nil:
		return Holder{}, fmt.Errorf("force release of %s: %w", key, err)
	case len(former) != 4:
		return Holder{}, fmt.Errorf("force release of %s with fence %d: %w", key, fence, ErrNotHeld)
	}
	return Holder{
		Worker: former[1], Job: former[2], Operation: former[3], Fence: fence, Since: time.UnixMicro(parseMicros(former[0])),
	}, nil
}
