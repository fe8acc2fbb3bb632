package state

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// fieldKinds has the kinds of fields, by their names up to the first colon. Those that are true are exported:
// they record what neither the volume nor the remote knows. Others are determined again, or name entries of a
// lost stream.
var fieldKinds = map[string]bool{
	"repo": true, "url": true, "synced": true, "head": true, "given": true, "repeat": true, "moved": true, "watched": true,
	"byhand": true, "check": true, defaultField: true, refusedField: true, missingField: true,

	"given_earlier": false, "fence": false, "asked": false, "newest": false, "look": false, HostsField: false,
	"tombstone": false, leftOutField: false, TroubleField: false,
	cellField: false, followsField: false,
}

// Exported returns the fields to export. Of the troubles, these are the refused credentials.
func (r Repo) Exported() map[string]string {
	fields := map[string]string{}
	for name, value := range r.fields {
		if kind, _, _ := strings.Cut(name, ":"); fieldKinds[kind] {
			fields[name] = value
		}
	}
	if refusals := (Repo{}).withRefusals(r); refusals != "" {
		fields[TroubleField] = refusals
	}
	return fields
}

// Repeat makes exported fields request the last results again, as apps may not have received them. What apps
// may read stays as it is.
func Repeat(fields map[string]string) {
	for name := range fields {
		if of, ok := strings.CutPrefix(name, givenPrefix); ok {
			fields[repeatPrefix+of] = nothingReceived
		}
	}
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
func (r Repo) isUsed() bool {
	for name := range r.fields {
		switch kind, _, _ := strings.Cut(name, ":"); kind {
		case "synced", "head", "given", "moved", "tombstone", cellField:
			return true
		}
	}
	return false
}
