package watch

import (
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

// Verdict is the result of [Registry.Accept].
type Verdict string

// The verdicts.
const (
	Accepted  Verdict = "accepted"  // its changes are in the stream
	Duplicate Verdict = "duplicate" // the delivery was accepted before; nothing changed
	Stale     Verdict = "stale"     // the watches have changed and nothing was accepted: recompute the changes
)

// Keep is how long the ID of a delivery is remembered.
const Keep = 72 * time.Hour

const (
	maxDeliveries = 200_000 // deliveries remembered for each source
	maxDelivery   = 200     // bytes; a longer ID is hashed
)

// Delivery is a webhook delivery and the changes computed from it.
type Delivery struct {
	Source   string            // scope of the ID
	ID       string            // deduplicates deliveries; "" disables it
	Versions map[string]string // [RemoteKey] to [RemoteWatches.Version] of the watches that Changes were computed from
	Changes  []events.Change
}

// Accept adds the changes to the stream and the ID to its source's ledger, which keeps the last 200,000, in
// one step. It also records in the repository's state the newest entry that announces a commit, so that a
// worker with an earlier entry knows that the remote may no longer have its commit. After a Redis error the
// changes may or may not be in the stream; it is safe to accept the delivery again, because its ID
// deduplicates it. Without changes only the ID is added.
func (r *Registry) Accept(ctx context.Context, d Delivery) (Verdict, error) {
	if d.ID != "" && d.Source == "" {
		return "", errors.New("accept: a delivery with an ID requires a source")
	}
	keys := []string{r.namespace.Changes(), r.namespace.Deliveries() + d.Source}
	args := []any{ledgerID(d.ID), Keep.Milliseconds(), maxDeliveries, len(d.Versions)}
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

// WasAccepted reports whether the ledger of a source has a delivery.
func (r *Registry) WasAccepted(ctx context.Context, source, delivery string) (bool, error) {
	at, err := r.redis.ZScore(ctx, r.namespace.Deliveries()+source, ledgerID(delivery)).Result()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up delivery %.80q: %w", delivery, err)
	}
	return time.Since(time.UnixMilli(int64(at))) < Keep, nil
}

// ledgerID returns the ID that the ledger stores for a delivery: a hash if it is long.
func ledgerID(delivery string) string {
	if len(delivery) <= maxDelivery {
		return delivery
	}
	sum := sha256.Sum256([]byte(delivery))
	return "sha256:" + hex.EncodeToString(sum[:])
}
