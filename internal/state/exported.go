package state

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// fieldKinds has the kinds of fields, by their names up to the first colon. Those that are true are exported: they record what neither the
// volume nor the remote knows. Others are determined again, or name entries of a lost stream.
var fieldKinds = map[string]bool{
	"repo": true, "url": true, "synced": true, "head": true, "given": true, "repeat": true, "moved": true, "watched": true,
	"byhand": true, "check": true, defaultField: true, refusedField: true, missingField: true,

	"given_earlier": false, "fence": false, "asked": false, "newest": false, "look": false, "tombstone": false, leftOutField: false, TroubleField: false,
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
	if refusals := r.refusals(); refusals != "" {
		fields[TroubleField] = refusals
	}
	return fields
}

// Repeat makes exported fields request the last results again, as apps may not have received them. What apps may read stays as it is.
func Repeat(fields map[string]string) {
	for name := range fields {
		if of, ok := strings.CutPrefix(name, givenPrefix); ok {
			fields[repeatPrefix+of] = nothingReceived
		}
	}
}

// Restore stores exported fields of a repository and reports whether it did: not if the state already has a clone, its removal or a move.
func (s *Store) Restore(ctx context.Context, repo events.RepoPath, fields map[string]string) (added bool, err error) {
	known, err := s.Load(ctx, repo)
	if err != nil {
		return false, err
	}
	for name := range known.fields {
		switch kind, _, _ := strings.Cut(name, ":"); kind {
		case "synced", "head", "given", "moved", "tombstone", cellField:
			return false, nil
		}
	}
	fields = RepoOf(fields).Exported()
	_, err = s.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		for name, value := range fields {
			pipe.HSetNX(ctx, s.namespace.Repo(repo), name, value) // a worker may sync it meanwhile
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("restore the state of %s: %w", repo, err)
	}
	return len(fields) > 0, nil
}
