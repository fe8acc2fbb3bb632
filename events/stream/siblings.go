package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// Sibling is a parked entry with the same key, and what [Delivery.SettleSiblings] writes for it.
type Sibling struct {
	Entry   string
	Message *message.Message // read only; must not be acked or nacked

	Outputs []Output     // messages to publish, in order
	State   []HashUpdate // hashes to update
	Settled func()       // called if this call has settled the sibling; must not block; optional
}

// Siblings returns a page of about limit parked entries with the same key, and the token of the next page. The token
// is "" for the first page, and after the last. An entry that changes state meanwhile may be missed or returned twice.
// With [Delivery.SettleSiblings], the holder of a lease on the key can settle the siblings that its work also answers.
func (d *Delivery) Siblings(ctx context.Context, page string, limit int) (siblings []Sibling, next string, err error) {
	if d.key == "" {
		return nil, "", nil
	}
	from := "[" + labelOf(d.key, mayUnpark)
	if page != "" {
		from = "(" + page
	}
	found, next, err := d.sub.group.readParked(ctx, from, "("+labelOf(d.key, mustWait+1), limit)
	if err != nil {
		return nil, "", fmt.Errorf("siblings of entry %s of %s: %w", d.entry, d.Stream(), err)
	}
	for _, e := range found {
		if msg, err := decode(d.sub.cfg.Unmarshaller, e.id, e.values()); err == nil && e.id != d.entry {
			siblings = append(siblings, Sibling{Entry: e.id, Message: msg})
		}
	}
	return siblings, next, nil
}

// Defer delays the redelivery of siblings, as nacking each with that delay does. It skips those that are no longer parked.
func (d *Delivery) Defer(ctx context.Context, entries []string, delay time.Duration) error {
	for batch := range slices.Chunk(entries, entriesAtOnce) {
		if err := d.sub.group.deferParked(ctx, d.key, batch, delay); err != nil {
			return fmt.Errorf("defer siblings of entry %s of %s: %w", d.entry, d.Stream(), err)
		}
	}
	if len(entries) > 0 {
		d.sub.wakeReader()
	}
	return nil
}

// Hasten makes the parked entries of a key due that wait only for a delay, up to limit, the oldest first. Those whose
// attempt failed keep their delay. It does nothing if the group or the stream does not exist.
func Hasten(ctx context.Context, client redis.UniversalClient, prefix, topic, group, key string, limit int) error {
	g := groupOf(client, prefix, topic, group)
	after, end := labelOf(key, mustWait)+afterFailure+"\xff", labelOf(key, mustWait+1)
	entries, _, err := g.readParked(ctx, "("+after, "("+end, limit)
	if err == nil && len(entries) > 0 {
		ids := make([]string, len(entries))
		for i, e := range entries {
			ids[i] = e.id
		}
		err = g.deferParked(ctx, key, ids, 0)
	}
	if err != nil && !noGroup(err) && !noStream(err) {
		return fmt.Errorf("hasten what waits for %s in %s: %w", key, topic, err)
	}
	return nil
}

// SettleSiblings settles siblings of d as [Delivery.Settle] settles d, each atomically, and returns how many
// it settled. It skips siblings that are no longer parked. If the lease is not held, it settles none and
// returns [ErrGuard].
func (d *Delivery) SettleSiblings(ctx context.Context, guard *Guard, batch []Sibling) (settled int, err error) {
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
func oneStep(batch []Sibling) int {
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

func (d *Delivery) settleBatch(ctx context.Context, guard *Guard, batch []Sibling) (settled int, err error) {
	call := settleCall{guard: guard}
	for _, s := range batch {
		if err := call.add(s.Entry, parked, nil, s.Outputs, s.State); err != nil {
			return 0, err
		}
	}
	var verdicts []string
	err = d.sub.outage.retry(ctx, func(ctx context.Context) error {
		verdicts, _, err = d.sub.group.settle(ctx, call)
		return err
	})
	if err != nil {
		return 0, err
	}
	for i, verdict := range verdicts {
		switch verdict {
		case verdictSettled, verdictAlready:
			settled++
		case verdictGuard:
			err = guard.refused()
		}
		if verdict == verdictSettled && batch[i].Settled != nil {
			batch[i].Settled()
		}
	}
	return settled, err
}
