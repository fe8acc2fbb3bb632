package state

import (
	"cmp"
	"context"
	_ "embed" // the script
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// fieldKind says what becomes of a field of a state.
type fieldKind struct {
	exported bool // it records what neither the volume nor the remote knows; others are determined again, or name entries of a lost stream
	restores bool // a state with it is complete, so [Store.Restore] replaces none of it
}

// fieldKinds has the kinds of fields, by their names up to the first colon. A worker may have written those that do not make a state
// complete before an interrupted import is repeated: failures, circuit breakers, checks.
var fieldKinds = map[string]fieldKind{
	"synced": {true, true}, "head": {true, true}, "given": {true, true}, "moved": {true, true}, "denied": {true, true},
	"tombstone": {false, true}, cellField: {false, true},

	"repo": {exported: true}, "url": {exported: true}, "repeat": {exported: true}, "watched": {exported: true}, "byhand": {exported: true},
	"check": {exported: true}, defaultField: {exported: true}, refusedField: {exported: true}, missingField: {exported: true},

	"given_earlier": {}, "fence": {}, "asked": {}, "newest": {}, "look": {}, leftOutField: {}, failingField: {}, failuresField: {}, tripsField: {}, openUntilField: {}, followsField: {},
}

// completeKinds returns the kinds of fields that make a state complete, in order.
func completeKinds() (kinds []string) {
	for kind, is := range fieldKinds {
		if is.restores {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// Exported returns the fields to export. It returns none if there is no information about a clone or its moves.
func (r Repo) Exported() map[string]string {
	fields, says := map[string]string{}, false
	for name, value := range r.fields {
		kind, _, _ := strings.Cut(name, ":")
		if fieldKinds[kind].exported {
			fields[name] = value
			says = says || kind != "repo" && kind != "url"
		}
	}
	if !says {
		return nil
	}
	return fields
}

// CheckExported returns an error unless all fields are among those that [Repo.Exported] returns.
func CheckExported(fields map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if kind, _, _ := strings.Cut(name, ":"); !fieldKinds[kind].exported {
			return fmt.Errorf("field %.100q of a repository's state is unknown", name)
		}
	}
	return nil
}

// Repeat makes exported fields and views request the last result of ref again for an app that may not have received it. before is the
// commit that the app received before that one, or "". What the app may read stays as it is.
func Repeat(fields, views map[string]string, app string, ref events.Ref, before string) {
	if given := fields[givenField(app, ref)]; given == "" || given == before {
		return
	}
	fields[repeatField(app, ref)] = cmp.Or(before, nothingReceived)
	all := ViewsField(app, ref)
	maps.DeleteFunc(views, func(field, _ string) bool { return field == all || strings.HasPrefix(field, all+":") })
}

// RepeatAll changes exported fields and views to those of a repository of which perhaps no app has received anything.
func RepeatAll(fields, views map[string]string) {
	for name := range fields {
		if of, ok := strings.CutPrefix(name, givenPrefix); ok {
			fields[repeatPrefix+of] = nothingReceived
		}
	}
	clear(views)
}

// Unwatched removes the fields that mark a repository as watched: a clone that was watched and no longer is would be removed.
func Unwatched(fields map[string]string) {
	maps.DeleteFunc(fields, func(name, _ string) bool { return strings.HasPrefix(name, "watched:") })
}

// Read returns the states of repositories and the fields of their views. Each repository is read atomically.
func (s *Store) Read(ctx context.Context, repos []events.RepoPath) (states []Repo, views []map[string]string, err error) {
	if len(repos) == 0 {
		return nil, nil, nil
	}
	replies := make([]*redis.MapStringStringCmd, 0, 2*len(repos))
	_, err = s.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, repo := range repos {
			replies = append(replies, pipe.HGetAll(ctx, s.namespace.Repo(repo)), pipe.HGetAll(ctx, s.namespace.Views(repo)))
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("load the states of %d repositories: %w", len(repos), err)
	}
	for i := 0; i < len(replies); i += 2 {
		states, views = append(states, Repo{fields: replies[i].Val()}), append(views, replies[i+1].Val())
	}
	return states, views, nil
}

var (
	//go:embed restore.lua
	restoreSource string
	restoreScript = redis.NewScript(restoreSource)
)

// Restoring is the outcome of [Store.Restore].
type Restoring string

// The outcomes.
const (
	Restored  Restoring = "restored" // there was no state
	Unchanged Restoring = "same"     // the state has all of these fields
	Kept      Restoring = "kept"     // other state stays
)

// Restore stores exported fields and views of a repository unless its state is complete: see [fieldKinds]. With dryRun it writes nothing.
func (s *Store) Restore(ctx context.Context, repo events.RepoPath, fields, views map[string]string, dryRun bool) (Restoring, error) {
	args := []any{"0"}
	if dryRun {
		args[0] = "1"
	}
	kinds := completeKinds()
	args = append(args, len(kinds))
	for _, kind := range kinds {
		args = append(args, kind)
	}
	for _, all := range []map[string]string{fields, views} {
		args = append(args, 2*len(all))
		for name, value := range all {
			args = append(args, name, value)
		}
	}
	reply, err := restoreScript.Run(ctx, s.redis, []string{s.namespace.Repo(repo), s.namespace.Views(repo)}, args...).Text()
	if err != nil {
		return "", fmt.Errorf("restore the state of %s: %w", repo, err)
	}
	return Restoring(reply), nil
}
