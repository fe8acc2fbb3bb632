package stream

import (
	"context"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Sibling is a waiting entry with the same key, parked or owned by this consumer.
type Sibling struct {
	Entry    string
	Message  *message.Message // read only payload and UUID; must not be acked or nacked
	Metadata message.Metadata // as published; must not be changed

	delivery *Delivery // nil if parked
}

// SiblingSettlement is the data to write for a sibling.
type SiblingSettlement struct {
	Sibling Sibling
	Outputs []Output     // messages to publish, in order
	State   []HashUpdate // hashes to update
	Notes   *Notes       // notes to change; optional

	Settled func() // called if this call has settled the sibling; must not block; optional
}

// Siblings returns a page of about limit waiting entries with the same key, and the token of the next page. The token
// is "" for the first page, and after the last. An entry that changes state meanwhile may be missed or returned twice.
// With [Delivery.SettleSiblings], the holder of a lease on the key can settle the siblings that its work also answers.
func (d *Delivery) Siblings(ctx context.Context, page string, limit int) (siblings []Sibling, next string, err error) {
	if d.key == "" {
		return nil, "", nil
	}
	kind, after := byte(mayUnpark), ""
	if page == "" {
		siblings = d.SiblingsInFlight()
	} else {
		kind, after = page[0], page[1:]
	}
	found, last, err := d.parked(ctx, kind, after, false, limit)
	if err != nil {
		return nil, "", err
	}
	siblings = append(siblings, found...)
	switch {
	case last != "":
		next = string(kind) + last
	case kind == mayUnpark:
		next = string(byte(mustWait))
	}
	return siblings, next, nil
}

// Newest returns some of the newest siblings, at most limit of them parked.
func (d *Delivery) Newest(ctx context.Context, limit int) ([]Sibling, error) {
	if d.key == "" {
		return nil, nil
	}
	siblings := d.SiblingsInFlight()
	for _, kind := range []byte{mayUnpark, mustWait} {
		found, _, err := d.parked(ctx, kind, "", true, limit)
		if err != nil {
			return nil, err
		}
		siblings = append(siblings, found...)
	}
	return siblings, nil
}

// SiblingsInFlight returns the siblings that this consumer owns, oldest first. They include those that were parked when
// [Delivery.Siblings] returned them and have been taken since.
func (d *Delivery) SiblingsInFlight() []Sibling {
	d.sub.taking.RLock() // wait for entries that are on their way from Redis
	defer d.sub.taking.RUnlock()
	var siblings []Sibling
	for _, other := range d.sub.flight.of(d.key) {
		if other != d && !other.busy.Load() && !other.lost.Load() {
			siblings = append(siblings, Sibling{other.entry, other.msg, other.meta, other})
		}
	}
	slices.SortFunc(siblings, func(a, b Sibling) int { return compareIDs(a.Entry, b.Entry) })
	return siblings
}

// parked returns parked siblings and the label to continue after, "" at the end.
func (d *Delivery) parked(ctx context.Context, kind byte, after string, newest bool, limit int) (siblings []Sibling, last string, err error) {
	var found []parkedEntry
	err = withTimeout(ctx, func(ctx context.Context) error {
		found, err = d.sub.group.readParked(ctx, d.key, kind, after, newest, limit)
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("siblings of entry %s of %s: %w", d.entry, d.Stream(), err)
	}
	for _, e := range found {
		last = e.label
		if msg, err := decode(d.sub.cfg.Unmarshaller, e.entry); err == nil && e.id != d.entry {
			siblings = append(siblings, Sibling{Entry: e.id, Message: msg, Metadata: msg.Metadata})
		}
	}
	return siblings, last, nil
}

// SettleSiblings settles siblings of d as [Delivery.Settle] settles d, each atomically, and returns how many it
// settled. It skips siblings that another consumer owns by now. For siblings that this consumer owns, it cancels the
// message's context with the cause [ErrSettled]. If the lease is not held, it settles none and returns [ErrGuard].
func (d *Delivery) SettleSiblings(ctx context.Context, guard *Guard, batch []SiblingSettlement) (settled int, err error) {
	for len(batch) > 0 {
		n := oneStep(batch)
		part := batch[:n]
		batch = batch[n:]
		n, err := d.settleBatch(ctx, guard, part)
		settled += n
		if err != nil {
			return settled, fmt.Errorf("settle siblings of entry %s of %s: %w", d.entry, d.Stream(), err)
		}
	}
	return settled, nil
}

// Limits of one script call, which bound how long it blocks Redis. The last entry may exceed the bytes.
const (
	settledAtOnce = 100     // entries
	settledBytes  = 1 << 20 // of their outputs
)

// oneStep returns how many of the siblings one script call settles, at least one.
func oneStep(batch []SiblingSettlement) int {
	bytes := 0
	for i, s := range batch {
		if i == settledAtOnce || bytes >= settledBytes {
			return i
		}
		for _, out := range s.Outputs {
			bytes += len(out.Message.Payload)
		}
	}
	return len(batch)
}

func (d *Delivery) settleBatch(ctx context.Context, guard *Guard, batch []SiblingSettlement) (settled int, err error) {
	var call settleCall
	var mine []*Delivery   // deliveries of the call's entries, nil for a parked one
	var callbacks []func() // their Settled callbacks
	for _, s := range batch {
		own, owner := s.Sibling.delivery, parked
		if own != nil {
			if !own.mu.TryLock() { // already being finished
				continue
			}
			defer own.mu.Unlock()
			if own.how != "" {
				continue
			}
			owner = d.sub.group.consumer
		}
		if err := call.add(s.Sibling.Entry, owner, nil, s.Outputs, s.State, s.Notes); err != nil {
			return 0, err
		}
		mine, callbacks = append(mine, own), append(callbacks, s.Settled)
	}
	if len(mine) == 0 {
		return 0, nil
	}
	call.guard = guard
	for _, own := range mine {
		if own != nil {
			own.busy.Store(true)
		}
	}
	var verdicts []string
	err = d.sub.outage.retry(ctx, func(ctx context.Context) error {
		verdicts, _, err = d.sub.group.settle(ctx, call)
		return err
	})
	if err != nil {
		verdicts = make([]string, len(mine)) // all unknown
	}
	for i, own := range mine {
		switch verdicts[i] {
		case verdictSettled, verdictAlready:
			settled++
			own.markSettledBySibling()
			if verdicts[i] == verdictSettled && callbacks[i] != nil {
				callbacks[i]()
			}
			continue
		case verdictGuard:
			err = guard.refused()
		}
		if own != nil {
			own.busy.Store(false)
		}
	}
	return settled, err
}

// markSettledBySibling ends a delivery that a sibling's handler settled. d may be nil. The caller holds mu.
func (d *Delivery) markSettledBySibling() {
	if d != nil {
		d.how, d.settledBySibling = Settled, true
		d.cancel(ErrSettled)
	}
}
