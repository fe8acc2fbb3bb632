package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// fieldKinds has the kinds of fields, by their names up to the first colon. Those that are true are exported:
// they record what neither the volume nor the remote knows. Others are determined again, or name entries of a
// lost stream. Fields of extensions, which are not listed and have a colon, are exported.
var fieldKinds = map[string]bool{
	"repo": true, "url": true, "synced": true, "head": true, "given": true, "moved": true, "watched": true,
	"byhand": true, "check": true, DefaultField: true, refusedField: true, missingField: true,

	"fence": false, "asked": false, "chain": false, awaitedField: false,
	"tombstone": false, leftOutField: false, TroubleField: false,
	cellField: false, fromField: false, answeredField: false,
}

// Exported returns the fields to export. Of the troubles, these are the refused credentials.
func (r Repo) Exported() map[string]string {
	fields := map[string]string{}
	for name, value := range r.fields {
		if kind, _, _ := strings.Cut(name, ":"); fieldKinds[kind] || isOfExtension(name) {
			fields[name] = value
		}
	}
	if refusals := (Repo{}).withRefusals(r); refusals != "" {
		fields[TroubleField] = refusals
	}
	return fields
}

// Restore stores exported fields of a repository and reports whether it did: not if the state already has a clone, its
// removal or a move. Refused credentials are added to those that it has.
func (s *Store) Restore(ctx context.Context, repo events.RepoPath, fields map[string]string) (added bool, err error) {
	key := s.namespace.Repo(repo)
	restored := RepoOf(RepoOf(fields).Exported())
	restore := func(tx *redis.Tx) error {
		known, err := s.Load(ctx, repo)
		if err != nil {
			return err
		}
		if added = len(restored.fields) > 0 && !known.isUsed(); !added {
			return nil
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			for name, value := range restored.fields {
				pipe.HSetNX(ctx, key, name, value)
			}
			if troubles := known.withRefusals(restored); troubles != "" {
				pipe.HSet(ctx, key, TroubleField, troubles)
			}
			return nil
		})
		return err
	}
	for { // a worker may change the state meanwhile
		switch err := s.redis.Watch(ctx, restore, key); {
		case errors.Is(err, redis.TxFailedErr):
			continue
		case err != nil:
			return false, fmt.Errorf("restore the state of %s: %w", repo, err)
		}
		return added, nil
	}
}

// isUsed reports whether the state has a clone, its removal or a move.
func (r Repo) isUsed() bool { return r.has("synced", "head", "given", "moved", "tombstone", cellField) }

// has reports whether the state has a field of one of these kinds.
func (r Repo) has(kinds ...string) bool {
	for name := range r.fields {
		if kind, _, _ := strings.Cut(name, ":"); slices.Contains(kinds, kind) {
			return true
		}
	}
	return false
}
