package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
)

// Settlement is the data to write when an entry is finished. On Cluster, all keys share the stream's hash tag.
type Settlement struct {
	Guard   *Guard       // lease that must be held; optional
	Also    []Guard      // further leases that must be held
	Outputs []Output     // messages to publish, in order
	State   []HashUpdate // hashes to update

	// OnRelease, if not nil, requests that the same step release the Guard's lease, unless other requests wait
	// for it in the guard's Queue or as parked siblings. It is called if the lease was released.
	OnRelease func()
}

// Output is a message for a stream.
type Output struct {
	Stream  string
	Message *message.Message
}

// HashUpdate sets and removes fields of a hash.
type HashUpdate struct {
	Key    string
	Fields map[string]string
	Drop   []string      // fields to remove
	Clear  bool          // remove all other fields
	Expire time.Duration // after which Redis removes the hash; 0 leaves that as it is
}

// Guard identifies a lease in the same Redis: a hash with the fields owner, fence and expires, in
// microseconds of Redis' clock. The lease is held if owner and fence match and it has not expired.
type Guard struct {
	Key   string
	Owner string
	Fence uint64
	Queue string // key that exists while others wait for the lease; only needed for Settlement.OnRelease
}

// Settle publishes outputs, updates state and acknowledges the entry in one atomic step. On error it changes
// nothing and returns [ErrNotOwner], [ErrGuard] or Redis' error. Calling it again after success does nothing
// and returns nil. While Redis is unavailable it retries until ctx is done; if ctx is already done it tries
// once.
func (d *Delivery) Settle(ctx context.Context, s Settlement) error {
	return d.settle(ctx, Settled, nil, s)
}

// DeadLetter is [Delivery.Settle] for an entry that is given up. It also adds a letter with the entry's
// fields, each name prefixed by "original:", to the dead stream. reason is a word or two, to group by, as is class, the
// kind of fault; cause is one line about what failed, and must not contain a secret.
func (d *Delivery) DeadLetter(ctx context.Context, reason string, class events.Class, cause string, s Settlement) error {
	letter := &deadLetter{d.sub.cfg.dead(), reason, string(class), cause, d.attempt}
	return d.settle(ctx, Dead, letter, s)
}

func (d *Delivery) settle(ctx context.Context, how string, letter *deadLetter, s Settlement) error {
	call := settleCall{guard: s.Guard, also: s.Also, release: s.Guard != nil && s.OnRelease != nil, key: d.key}
	if err := call.add(d.entry, d.sub.group.consumer, letter, s.Outputs, s.State); err != nil {
		return err
	}
	returned := false
	err := d.finish(ctx, how, func(ctx context.Context) (err error) {
		returned, err = d.settleOnce(ctx, call)
		return err
	})
	if returned {
		s.OnRelease()
	}
	return err
}

// settleOnce runs the script. If the entry is not pending, it counts as settled only if an earlier call of ours
// may have settled it. Otherwise another consumer did, or Redis lost its data, and reporting success could
// lose the outputs. The caller holds mu.
func (d *Delivery) settleOnce(ctx context.Context, call settleCall) (returned bool, err error) {
	verdicts, returned, err := d.sub.group.settle(ctx, call)
	if err != nil {
		d.maybeSettled = d.maybeSettled || mayHaveRun(err)
		return false, err
	}
	switch verdicts[0] {
	case verdictGuard:
		return false, call.guard.refused()
	case verdictNotOwner:
		return false, ErrNotOwner
	case verdictAlready, verdictGone:
		if !d.maybeSettled {
			return false, fmt.Errorf("%w: it is no longer pending", ErrNotOwner)
		}
	}
	return returned, nil
}

func (g *Guard) refused() error {
	return fmt.Errorf("%w: %s, owner %s, fence %d", ErrGuard, g.Key, g.Owner, g.Fence)
}

type deadLetter struct {
	stream               string
	reason, class, cause string
	attempts             int
}

// settleCall is the input of one call of the settle script.
type settleCall struct {
	guard   *Guard
	also    []Guard
	release bool   // release the guard's lease unless others wait for it
	key     string // key of the entry
	n       int    // number of entries
	keys    []string
	args    []any
}

// The verdicts of the script on an entry.
const (
	verdictSettled  = "settled"
	verdictAlready  = "already"
	verdictGone     = "gone"
	verdictNotOwner = "not owner"
	verdictGuard    = "guard"

	leaseReturned = "returned" // follows the verdicts if the script released the lease
)

// add adds an entry, which must be pending under owner, and the data to write for it.
func (c *settleCall) add(id, owner string, dead *deadLetter, outputs []Output, state []HashUpdate) error {
	keys, args := c.keys, append(c.args, id, owner)
	if dead != nil {
		keys = append(keys, dead.stream)
		args = append(args, 1, deadCap, dead.reason, dead.class, dead.cause, dead.attempts)
	} else {
		args = append(args, 0)
	}
	args = append(args, len(outputs))
	for _, out := range outputs {
		if out.Stream == "" || out.Message == nil {
			return errors.New("stream: an Output needs a stream and a message")
		}
		fields, err := Fields(out.Message)
		if err != nil {
			return fmt.Errorf("marshal output for %s: %w", out.Stream, err)
		}
		keys = append(keys, out.Stream)
		args = append(args, len(fields))
		for _, f := range fields {
			args = append(args, f)
		}
	}
	args = append(args, len(state))
	for _, update := range state {
		if update.Key == "" {
			return errors.New("stream: a HashUpdate needs a key")
		}
		keys = append(keys, update.Key)
		clear := 0
		if update.Clear {
			clear = 1
		}
		args = append(args, clear, update.Expire.Milliseconds(), len(update.Drop))
		for _, name := range update.Drop {
			args = append(args, name)
		}
		args = append(args, 2*len(update.Fields))
		for _, name := range slices.Sorted(maps.Keys(update.Fields)) {
			args = append(args, name, update.Fields[name])
		}
	}
	c.n, c.keys, c.args = c.n+1, keys, args
	return nil
}

// settle runs the script. It returns the verdict on each entry, in order, and whether the script released the lease.
func (g *group) settle(ctx context.Context, c settleCall) (verdicts []string, returned bool, err error) {
	keys := []string{g.stream, g.due, g.failures, g.parkedIndex, g.parkedLabels}
	args := []any{g.name, g.consumer}
	if c.guard != nil {
		keys = append(keys, c.guard.Key)
		args = append(args, 1, c.guard.Owner, strconv.FormatUint(c.guard.Fence, 10), len(c.also))
		for _, other := range c.also {
			keys = append(keys, other.Key)
			args = append(args, other.Owner, strconv.FormatUint(other.Fence, 10))
		}
	}
	if c.release {
		keys = append(keys, c.guard.Queue)
		args = append(args, 1, "["+labelOf(c.key, mayUnpark), "("+labelOf(c.key, mustWait+1))
	} else {
		args = append(args, 0) // no guard, or keep its lease
	}
	args = append(args, c.n)
	verdicts, err = settleScript.Run(ctx, g.redis, append(keys, c.keys...), append(args, c.args...)...).StringSlice()
	if n := len(verdicts); err == nil && n == c.n+1 && verdicts[c.n] == leaseReturned {
		verdicts, returned = verdicts[:c.n], true
	}
	if err == nil && len(verdicts) != c.n {
		err = fmt.Errorf("settle: %w: %q", errReply, verdicts)
	}
	return verdicts, returned, err
}
