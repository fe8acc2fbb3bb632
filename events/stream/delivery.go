package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

var (
	// ErrNotOwner means that the entry is pending under another consumer, or was finished by one: this
	// one took too long, or was cut off. Nothing was changed. It is also the cause of the message's context then.
	ErrNotOwner = errors.New("stream: the entry is in other hands")

	// ErrGuard means that the lease named by a [Guard] is not held. Nothing was changed.
	ErrGuard = errors.New("stream: the lease is not held any more")

	// ErrSettled is the cause of a message's context when a sibling's handler has settled it too, see
	// [Delivery.SettleSiblings]: there is nothing left to do. Finishing it in another way is refused with it.
	ErrSettled = errors.New("stream: the entry was settled along with another")
)

// Delivery is one entry of a stream in this consumer's hands, until it is finished: settled,
// dead-lettered, nacked, or by the message's own Ack or Nack, whichever comes first. Its methods are
// safe for concurrent use.
type Delivery struct {
	sub     *subscription
	entry   string
	key     string
	attempt int
	times   int
	since   time.Time
	msg     *message.Message
	meta    message.Metadata // as it was published; the message's own is its handler's to change
	ctx     context.Context  // the message's
	cancel  context.CancelCauseFunc

	busy atomic.Bool // is being finished, or is: a heartbeat that misses it is no news
	lost atomic.Bool // the handler has been told that the entry is in other hands
	mu   sync.Mutex  // held while it is being finished
	how  Outcome     // empty until finished
	// along is set once a sibling's handler has settled it.
	settledBySibling bool
	// asked is set once a settlement was sent to which no answer came: it may have happened.
	maybeSettled bool
}

type deliveryKey struct{}

// DeliveryOf returns the delivery that brought msg. It is found through the message's context, so a
// context derived from that one will do. It is false for a message that no [Subscriber] delivered.
func DeliveryOf(msg *message.Message) (*Delivery, bool) {
	d, ok := msg.Context().Value(deliveryKey{}).(*Delivery)
	return d, ok
}

// Stream is the name of the stream.
func (d *Delivery) Stream() string { return d.sub.group.stream }

// Group is the name of the consumer group.
func (d *Delivery) Group() string { return d.sub.group.name }

// Entry is the id of the stream entry.
func (d *Delivery) Entry() string { return d.entry }

// Key is the message's key, or "".
func (d *Delivery) Key() string { return d.key }

// Attempt is 1 the first time. It counts the deliveries that were nacked as failed and those that
// lapsed because a consumer died, hung or was cut off; it does not count those given back uncounted.
func (d *Delivery) Attempt() int { return d.attempt }

// Delivered is how often the entry has been delivered, this time included and counted or not: what a
// backoff under contention grows with.
func (d *Delivery) Delivered() int { return d.times }

// Began is when this consumer took the entry in, this time.
func (d *Delivery) Began() time.Time { return d.since }

// Latest returns the id that the stream last gave to an entry, which may be gone since.
func (d *Delivery) Latest(ctx context.Context) (id string, err error) {
	err = withTimeout(ctx, func(ctx context.Context) error {
		id, err = d.sub.group.latest(ctx)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("last entry of %s: %w", d.Stream(), err)
	}
	return id, nil
}

// Nack gives the entry back, to be delivered again after the delay, to whichever consumer has room
// then. With failed it counts as an attempt. Nacking again changes nothing; a delivery that was
// finished in another way is [ErrNotOwner].
func (d *Delivery) Nack(ctx context.Context, delay time.Duration, failed bool) error {
	how := Deferred
	if failed {
		how = Nacked
	}
	return d.finish(ctx, how, func(ctx context.Context) error {
		refused, err := d.sub.group.nack(ctx, []giveBack{d.back(how, delay)})
		d.sub.wakeReader()
		if err == nil && len(refused) > 0 {
			return ErrNotOwner
		}
		return err
	})
}

// back is how the entry is given back.
func (d *Delivery) back(how Outcome, delay time.Duration) giveBack {
	b := giveBack{id: d.entry, key: d.key, delayMS: ceilMS(delay), how: deferred}
	if how == Nacked {
		b.how = failed
	}
	return b
}

// finish runs the script that ends the delivery, again and again while Redis is unavailable.
func (d *Delivery) finish(ctx context.Context, how Outcome, script func(context.Context) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.how == "":
	case d.settledBySibling:
		return fmt.Errorf("%w: entry %s", ErrSettled, d.entry)
	case d.how == how || (d.how == Nacked || d.how == Deferred) && (how == Nacked || how == Deferred):
		return nil
	default:
		return fmt.Errorf("%w: entry %s was %s before", ErrNotOwner, d.entry, d.how)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(d.sub.graceOver, func() { cancel(ErrClosed) })()
	d.busy.Store(true)
	err := d.sub.outage.retry(ctx, script)
	switch {
	case err == nil:
		d.how = how
		return nil
	case errors.Is(err, ErrNotOwner) || noGroup(err):
		d.how = Lost
		if noGroup(err) {
			err = fmt.Errorf("%w: %w", ErrNotOwner, err)
		}
	default:
		d.busy.Store(false)
	}
	return fmt.Errorf("finish entry %s of %s: %w", d.entry, d.Stream(), err)
}

// claim marks an open delivery as about to be finished by the message's own Ack or Nack. It is false
// when that has been seen to.
func (d *Delivery) claim(how Outcome) bool {
	d.busy.Store(true)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.how != "" {
		return false
	}
	d.how = how
	return true
}

// Outcome is how the delivery ended, "" until it has.
func (d *Delivery) Outcome() Outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.how
}

// lose tells the handler that the entry is in other hands.
func (d *Delivery) lose() {
	if d.busy.Load() || d.lost.Swap(true) {
		return
	}
	d.sub.log.Warn("delivery lost: another consumer has the entry, this one was too slow or cut off",
		"stream", d.Stream(), "entry", d.entry, "attempt", d.attempt)
	d.cancel(ErrNotOwner)
}

// ceilMS is d in milliseconds, rounded up: not before d, and never negative.
func ceilMS(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 {
		ms++
	}
	return max(0, ms)
}
