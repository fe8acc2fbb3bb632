package stream

import (
	"context"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Waiter selects the entries to wake.
type Waiter struct {
	Key string // see [SubscriberConfig]
	// Match reports whether an entry is to be woken. It decides only if more than eight entries of the key wait. Optional.
	Match func(*message.Message) bool
}

const (
	wokenPerEnd = 4    // entries woken among the oldest, and as many among the newest
	wakePage    = 50   // entries per script call of a search for matches
	wakeSearch  = 2000 // maximum number of entries, the oldest, that are searched for matches
)

// Wake makes the oldest and the newest waiting entries of each waiter due now, because what they wait for has come: at most
// eight entries that were given back with a delay and uncounted. Entries that wait because an attempt failed keep their
// delay. It reports for each waiter whether there were such entries: others may still be on the way back to the stream.
func (s *Subscriber) Wake(ctx context.Context, topic string, waiters []Waiter) (woken []bool, err error) {
	g := s.group(topic, s.cfg.Consumer)
	for batch := range slices.Chunk(waiters, endingsAtOnce) {
		states, err := g.wake(ctx, batch, nil)
		for i, state := range states {
			some := state == wakeDone
			if state == wakeChoose {
				if some, err = s.wakeMatches(ctx, g, batch[i]); err != nil {
					break
				}
			}
			woken = append(woken, some)
		}
		if err != nil {
			return nil, fmt.Errorf("wake entries of %s: %w", topic, err)
		}
	}
	return woken, nil
}

// wakeMatches wakes the matches among the many entries that wait with a key.
func (s *Subscriber) wakeMatches(ctx context.Context, g *group, w Waiter) (bool, error) {
	var ids []string
	page := func(after string, newest bool) (last string, err error) {
		var found []parkedEntry
		err = withTimeout(ctx, func(ctx context.Context) error {
			found, err = g.readParked(ctx, w.Key, mustWait, after, newest, wakePage)
			return err
		})
		end := len(ids) + wokenPerEnd
		for _, e := range found {
			last = e.label
			msg, err := decode(s.cfg.Unmarshaller, e.entry)
			if len(ids) < end && err == nil && w.Match(msg) {
				ids = append(ids, e.id)
			}
		}
		return last, err
	}
	afterFailed := labelOf(w.Key, mustWait) + "a" // IDs begin with a later letter
	_, err := page(afterFailed, true)
	newest := len(ids)
	for after, n := afterFailed, 0; err == nil && after != "" && n < wakeSearch && len(ids) < newest+wokenPerEnd; n += wakePage {
		after, err = page(after, false)
	}
	if err != nil || len(ids) == 0 {
		return false, err
	}
	states, err := g.wake(ctx, nil, ids)
	return slices.Contains(states, wakeDone), err
}

// What wake.lua returns for a key or an entry.
const (
	wakeDone   = 1
	wakeChoose = 2
)

// wake makes entries due: those of waiters, by key, and some by ID.
func (g *group) wake(ctx context.Context, waiters []Waiter, ids []string) (states []int64, err error) {
	args := append(make([]any, 0, 3+2*len(waiters)+len(ids)), g.name, parked, len(waiters))
	for _, w := range waiters {
		choose := 0
		if w.Match != nil {
			choose = 1
		}
		args = append(args, labelOf(w.Key, mustWait), choose)
	}
	for _, id := range ids {
		args = append(args, id)
	}
	err = withTimeout(ctx, func(ctx context.Context) error {
		states, err = wakeScript.Run(ctx, g.redis, []string{g.stream, g.due, g.parkedIndex}, args...).Int64Slice()
		return err
	})
	if err == nil && len(states) != len(waiters)+len(ids) {
		err = fmt.Errorf("wake: %w", errReply)
	}
	return states, err
}
