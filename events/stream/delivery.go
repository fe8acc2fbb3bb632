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
	// ErrNotOwner means that the entry belongs to another consumer or was finished by one, because this consumer was
	// too slow or cut off. Nothing was changed. It is also the cause of the message's cancelled context.
	ErrNotOwner = errors.New("stream: the entry is owned by another consumer")

	// ErrGuard means that the lease of the [Guard] is not held. Nothing was changed.
	ErrGuard = errors.New("stream: the lease is not held")
)

// Delivery is a stream entry that this consumer owns until it is settled, dead-lettered or nacked, through the Delivery
// or through the message's own Ack or Nack, whichever comes first. Its methods are safe for concurrent use.
type Delivery struct {
	sub     *subscription
	entry   string
	key     string
	beside  bool // is handed out even if its key is busy
	attempt int
	deaths  atomic.Int64
	times   int
	bytes   int64
	since   time.Time
	msg     *message.Message
	ctx     context.Context // context of the message
	cancel  context.CancelCauseFunc

	busy atomic.Bool // is being or has been finished, so a heartbeat may miss the entry
	lost atomic.Bool // the handler was cancelled because another consumer owns the entry
	mu   sync.Mutex  // held while finishing
	how  string      // empty until finished

	latest string // set by the first Begin

	maybeSettled bool // a settlement got no reply and may have happened
}

type deliveryKey struct{}

// DeliveryOf returns the delivery of msg, which it finds through the message's context or one derived
// from it. It returns false if msg was not delivered by a [Subscriber].
func DeliveryOf(msg *message.Message) (*Delivery, bool) {
	d, ok := msg.Context().Value(deliveryKey{}).(*Delivery)
	return d, ok
}

// Stream returns the name of the stream.
func (d *Delivery) Stream() string { return d.sub.group.stream }

// Group returns the name of the consumer group.
func (d *Delivery) Group() string { return d.sub.group.name }

// Entry returns the ID of the stream entry.
func (d *Delivery) Entry() string { return d.entry }

// Attempt returns the number of this attempt, starting at 1. Only deliveries that failed count as attempts.
func (d *Delivery) Attempt() int { return d.attempt }

// Delivered returns how often the entry has been delivered, including this delivery and deferred ones.
func (d *Delivery) Delivered() int { return d.times }

// Began returns when this consumer received the entry.
func (d *Delivery) Began() time.Time { return d.since }

// Now returns the current time by Redis' clock, the clock of the timestamps in entry IDs.
func (d *Delivery) Now() time.Time { return d.sub.group.clock.now() }

// Deaths returns how often a consumer died, hung or was cut off after Begin, before it finished the entry or gave it back.
// It is 0 after Survived.
func (d *Delivery) Deaths() int { return int(d.deaths.Load()) }

// Begin records that the work on the message begins, and whether the death of this process counts; see [Delivery.Deaths].
// A later call changes the latter. It returns [ErrNotOwner] if another consumer owns the entry.
func (d *Delivery) Begin(ctx context.Context, counts bool) error {
	deaths := d.Deaths()
	if counts {
		deaths++
	}
	g := d.sub.group
	latest, err := beginScript.Run(ctx, g.redis, []string{g.stream, g.failures},
		g.name, g.consumer, deaths, d.entry).Text()
	if err == nil && latest == "" || noGroup(err) {
		err = ErrNotOwner
	}
	if err != nil {
		return fmt.Errorf("begin entry %s of %s: %w", d.entry, d.Stream(), err)
	}
	if d.latest == "" { // a later call may be beside the handler
		d.latest = latest
	}
	return nil
}

// Survived forgets the deaths, once the message is given back: its work has ended, and this process lives.
func (d *Delivery) Survived() { d.deaths.Store(0) }

// Latest returns the ID most recently assigned in the stream when the handler began, "" before [Delivery.Begin]. Its
// entry may already be deleted.
func (d *Delivery) Latest() string { return d.latest }

// Nack gives the entry back, to be redelivered after the delay to any consumer with room. If failed is true it counts
// as an attempt. Nacking twice is a no-op. If the delivery was finished in another way, Nack returns [ErrNotOwner].
func (d *Delivery) Nack(ctx context.Context, delay time.Duration, failed bool) error {
	how := Deferred
	if failed {
		how = Nacked
	}
	return d.finish(ctx, how, func(ctx context.Context) error {
		g := d.sub.group
		refused, err := g.nack(ctx, g.consumer, []giveBack{d.back(how, delay)})
		d.sub.wakeReader()
		if err == nil && len(refused) > 0 {
			return ErrNotOwner
		}
		return err
	})
}

func (d *Delivery) back(how string, delay time.Duration) giveBack {
	return giveBack{id: d.entry, key: d.key, delayMS: ceilMS(delay), how: how, deaths: d.Deaths()}
}

// finish runs the script that ends the delivery, and retries while Redis is unavailable.
func (d *Delivery) finish(ctx context.Context, how string, script func(context.Context) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.how == "":
	case d.how == how || (d.how == Nacked || d.how == Deferred) && (how == Nacked || how == Deferred):
		return nil
	default:
		return fmt.Errorf("%w: entry %s is already %s", ErrNotOwner, d.entry, d.how)
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

// claim records that the message's own Ack or Nack finishes the delivery, unless it is already finished.
func (d *Delivery) claim(how string) bool {
	d.busy.Store(true)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.how != "" {
		return false
	}
	d.how = how
	return true
}

// Outcome returns how the delivery ended, or "" if it has not.
func (d *Delivery) Outcome() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.how
}

func (d *Delivery) lose() {
	if d.busy.Load() || d.lost.Swap(true) {
		return
	}
	d.sub.log.Warn("delivery lost, another consumer owns the entry: this one was too slow or cut off",
		"stream", d.Stream(), "entry", d.entry, "attempt", d.attempt)
	d.cancel(ErrNotOwner)
}

// ceilMS returns d in milliseconds, rounded up, and never a negative number.
func ceilMS(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 {
		ms++
	}
	return max(0, ms)
}
