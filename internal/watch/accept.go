package watch

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/state"
)

var (
	//go:embed accept.lua
	acceptSource string
	acceptScript = redis.NewScript(acceptSource)
)

// Verdict is what became of an [Intake].
type Verdict string

// The verdicts.
const (
	Accepted  Verdict = "accepted"  // its changes are in the stream
	Duplicate Verdict = "duplicate" // the delivery was accepted before: nothing was done
	Stale     Verdict = "stale"     // the watches are others by now: nothing was done; make the changes anew
)

const (
	usualKeep      = 72 * time.Hour
	mostDeliveries = 200_000 // kept for each source
	maxDelivery    = 200     // bytes of an id that is kept as it is
)

// Intake is what one delivery comes to.
type Intake struct {
	Source   string            // whose delivery: ids are told apart by source
	Delivery string            // its id, to know it again by; "" for one that has none
	Keep     time.Duration     // how long the id is kept; default 72 h
	Versions map[string]string // of each remote whose watches the changes were made for: its [Place] to [Placed.Version]
	Changes  []events.Change
}

// Accept adds the changes to the stream in one step, with the delivery in its source's ledger, which keeps
// the last 200,000. Of those that announce a commit the repository's state is told, so that whoever works on an
// earlier one knows that the remote need not have that commit any more. After an error of Redis they may be in the stream or not: accept the delivery again, and
// its id tells.
func (r *Registry) Accept(ctx context.Context, in Intake) (Verdict, error) {
	if in.Delivery != "" && in.Source == "" {
		return "", errors.New("accept: a delivery wants a source")
	}
	keys := []string{r.namespace.Changes(), r.namespace.Deliveries() + in.Source}
	args := []any{ledgerID(in.Delivery), cmp.Or(in.Keep, usualKeep).Milliseconds(), mostDeliveries, len(in.Versions)}
	for _, place := range slices.Sorted(maps.Keys(in.Versions)) {
		keys = append(keys, r.at(place))
		args = append(args, in.Versions[place])
	}
	args = append(args, len(in.Changes))
	for _, c := range in.Changes {
		entry, err := entryOf(ctx, c)
		if err != nil {
			return "", err
		}
		newest := ""
		if c.Type == events.ChangePushed && c.Announced() != "" {
			newest = state.NewestField(c.Ref, c.App)
		}
		keys = append(keys, r.namespace.Repo(c.Repo))
		args = append(append(args, newest, len(entry)), entry...)
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

// ledgerID is the id that a delivery is kept under: of a long one its hash.
func ledgerID(delivery string) string {
	if len(delivery) <= maxDelivery {
		return delivery
	}
	sum := sha256.Sum256([]byte(delivery))
	return "sha256:" + hex.EncodeToString(sum[:])
}
