package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Settlement is what comes of an entry, to be written in the step that finishes it. On Redis Cluster
// all its keys share the stream's hash tag.
type Settlement struct {
	Guard   *Guard       // the lease that must be held; nil for none
	Outputs []Output     // messages to add to streams, in order
	State   []HashUpdate // fields to set in hashes
}

// Output is a message for a stream.
type Output struct {
	Stream  string
	Message *message.Message
}

// HashUpdate sets fields of a hash.
type HashUpdate struct {
	Key    string
	Fields map[string]string
	Clear  bool // remove all other fields
}

// Guard names a lease on the same Redis: a hash with the fields owner, fence and expires, the last in
// microseconds of Redis' own clock. It is held if owner and fence are those given and it has not
// expired.
type Guard struct {
	Key   string
	Owner string
	Fence uint64
}

// Reason says why an entry was given up.
type Reason struct {
	Reason   string // a word or two, to group by
	Error    string // one line: what failed, never a secret
	Attempts int    // 0 for the delivery's own
}

// Settle publishes, sets state and acknowledges the entry in one atomic step, or does nothing at all
// and returns [ErrNotOwner], [ErrGuard] or what Redis had against it. It may be called again: an entry
// that is settled is not settled twice, and that is no error. While Redis is unavailable it tries
// again until ctx is done; with a ctx that is done to begin with it tries once.
func (d *Delivery) Settle(ctx context.Context, s Settlement) error {
	keys, args, err := s.encode()
	if err != nil {
		return err
	}
	return d.finish(ctx, Settled, func(ctx context.Context) error {
		return d.settle(ctx, s.Guard, nil, keys, args)
	})
}

// DeadLetter is [Delivery.Settle] for an entry that is given up: it also adds the entry to the dead
// stream, with the reason, error and number of attempts, where it came from, and its original fields
// as they were, each name with "original:" in front.
func (d *Delivery) DeadLetter(ctx context.Context, r Reason, s Settlement) error {
	keys, args, err := s.encode()
	if err != nil {
		return err
	}
	letter := &deadLetter{d.sub.cfg.Dead, d.sub.cfg.DeadCap, r}
	letter.Attempts = cmp.Or(r.Attempts, d.attempt)
	return d.finish(ctx, Dead, func(ctx context.Context) error {
		return d.settle(ctx, s.Guard, letter, keys, args)
	})
}

// settle runs the script. An entry of which there is no trace was settled if we may have done so
// ourselves; if not, Redis lost its data, and what is reported as done must not be nowhere. The caller
// holds mu.
func (d *Delivery) settle(ctx context.Context, guard *Guard, letter *deadLetter, keys []string, args []any) error {
	err := d.sub.group.settle(ctx, d.entry, guard, letter, keys, args)
	switch {
	case errors.Is(err, errGone) && d.asked:
		return nil
	case errors.Is(err, errGone):
		return fmt.Errorf("%w: %w", ErrNotOwner, err)
	}
	d.asked = d.asked || mayHaveRun(err)
	return err
}

// errGone means that an entry is neither pending nor in the stream.
var errGone = errors.New("stream: there is no trace of the entry")

type deadLetter struct {
	stream string
	cap    int64
	Reason
}

// encode returns the keys of outputs and hashes, and the arguments that go with them.
func (s Settlement) encode() (keys []string, args []any, err error) {
	args = append(args, len(s.Outputs))
	for _, out := range s.Outputs {
		if out.Stream == "" || out.Message == nil {
			return nil, nil, errors.New("stream: an Output needs a stream and a message")
		}
		fields, err := encode(out.Stream, out.Message)
		if err != nil {
			return nil, nil, fmt.Errorf("marshal output for %s: %w", out.Stream, err)
		}
		keys = append(keys, out.Stream)
		args = append(args, len(fields))
		for _, f := range fields {
			args = append(args, f)
		}
	}
	args = append(args, len(s.State))
	for _, update := range s.State {
		if update.Key == "" {
			return nil, nil, errors.New("stream: a HashUpdate needs a key")
		}
		keys = append(keys, update.Key)
		clear := 0
		if update.Clear {
			clear = 1
		}
		args = append(args, clear, 2*len(update.Fields))
		for _, name := range slices.Sorted(maps.Keys(update.Fields)) {
			args = append(args, name, update.Fields[name])
		}
	}
	return keys, args, nil
}

func (g *group) settle(ctx context.Context, id string, guard *Guard, dead *deadLetter, outKeys []string, outArgs []any) error {
	keys := []string{g.stream, g.due, g.tries}
	args := []any{g.name, g.consumer, id}
	if guard != nil {
		keys = append(keys, guard.Key)
		args = append(args, 1, guard.Owner, strconv.FormatUint(guard.Fence, 10))
	} else {
		args = append(args, 0)
	}
	if dead != nil {
		keys = append(keys, dead.stream)
		args = append(args, 1, dead.cap, dead.Reason.Reason, dead.Error, dead.Attempts)
	} else {
		args = append(args, 0)
	}
	verdict, err := settleScript.Run(ctx, g.redis, append(keys, outKeys...), append(args, outArgs...)...).Text()
	switch {
	case err != nil:
		return err
	case verdict == "settled" || verdict == "already":
		return nil
	case verdict == "not owner":
		return ErrNotOwner
	case verdict == "gone":
		return errGone
	case verdict == "guard":
		return fmt.Errorf("%w: %s, owner %s, fence %d", ErrGuard, guard.Key, guard.Owner, guard.Fence)
	}
	return fmt.Errorf("settle: %w: %q", errReply, verdict)
}
