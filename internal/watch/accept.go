package watch

import (
	"context"
	_ "embed" // the script
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

var (
	//go:embed accept.lua
	acceptSource string
	acceptScript = redis.NewScript(acceptSource)
)

// Verdict is the result of [Registry.Accept].
type Verdict string

// The verdicts.
const (
	Accepted  Verdict = "accepted"  // its changes are in the stream
	Duplicate Verdict = "duplicate" // the delivery is not done, or was a minute ago; nothing changed
	Stale     Verdict = "stale"     // the watches have changed and nothing was accepted: recompute the changes
)

const (
	// Keep is how long a delivery is kept that cannot be accepted, and remembered while its changes do not settle.
	Keep = 7 * 24 * time.Hour

	doneFor = time.Minute // after its changes have settled well, a repeated delivery is a duplicate

	// HookSource starts the source of the changes of deliveries.
	HookSource = "/hooks/"
)

// Delivery is the changes of a webhook delivery, whose IDs are the same whenever it is repeated.
type Delivery struct {
	Versions map[string]string // [RemoteKey] to [RemoteWatches.Version] of the watches that Changes were computed from
	Changes  []events.Change
}

// Settled returns what the settlement of a change writes about its delivery: from then on the delivery is done, or it
// is repeated at once if the change has failed. It returns nothing for a change that came with no delivery.
func Settled(namespace events.Namespace, change events.Change, failed bool) []stream.HashUpdate {
	if !strings.HasPrefix(change.Source, HookSource) {
		return nil
	}
	return []stream.HashUpdate{{Key: namespace.Deliveries() + change.ID, Clear: failed, Expire: doneFor}}
}

// Accept adds the changes to the stream in one step, but for those that are known: a change is known until it settles, and, if
// it settles well, within a minute after. If all are, the delivery is a duplicate. After a Redis error the changes may or may
// not be in the stream; it is safe to accept the delivery again.
func (r *Registry) Accept(ctx context.Context, d Delivery) (Verdict, error) {
	keys, args := []string{r.namespace.Changes()}, []any{Keep.Milliseconds(), len(d.Versions)}
	for _, remote := range slices.Sorted(maps.Keys(d.Versions)) {
		keys = append(keys, r.at(remote))
		args = append(args, d.Versions[remote])
	}
	args = append(args, len(d.Changes))
	for _, c := range d.Changes {
		entry, err := entryOf(ctx, c)
		if err != nil {
			return "", err
		}
		keys = append(keys, r.namespace.Deliveries()+c.ID)
		args = append(append(args, len(entry)), entry...)
	}
	reply, err := acceptScript.Run(ctx, r.redis, keys, args...).Text()
	if err != nil {
		return "", fmt.Errorf("accept: %w", err)
	}
	switch verdict := Verdict(reply); verdict {
	case Accepted, Duplicate, Stale:
		return verdict, nil
	}
	return "", fmt.Errorf("accept: %w: %.100q", errReply, reply)
}
