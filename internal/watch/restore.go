package watch

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Stored is watches of one repository.
type Stored struct {
	Repo    events.RepoPath // as first watched
	Watches []Watch         // by app, then ref
}

// All iterates over the watches of all repositories in order. It stops after yielding an error: that of
// Redis, or that of a watch that cannot be decoded. Repositories that are added or removed meanwhile may be
// missing.
func (r *Registry) All(ctx context.Context) iter.Seq2[Stored, error] {
	return func(yield func(Stored, error) bool) {
		for kept, err := range r.all(ctx) {
			if err != nil {
				yield(Stored{}, err)
				return
			}
			found := Stored{Repo: kept.path()}
			found.Watches, err = kept.watches()
			if !yield(found, err) || err != nil {
				return
			}
		}
	}
}

// Restored is the outcome of [Registry.Restore].
type Restored struct {
	Added []Watch // did not exist
	Kept  []Watch // exist and differ: left as they are
	Same  int
}

// Restore adds those watches of a repository whose [Key] does not exist, and queues a poll if there are any.
// It changes no existing watch. All watches must name that repository. Like [Registry.Put] it returns an
// error of the class [events.ClassConflict] for two remotes at one path, a path above or below another
// watched path, and too many watches.
func (r *Registry) Restore(ctx context.Context, watches []Watch) (outcome Restored, err error) {
	edits, err := editsOf(watches, nil)
	if err != nil || len(edits) == 0 {
		return Restored{}, err
	}
	if len(edits) > 1 {
		return Restored{}, fmt.Errorf("restore watches of %d repositories at once: want one", len(edits))
	}
	e := edits[0]
	err = r.edit(ctx, e.repo, true, func(docs map[string]string) error {
		outcome = e.addTo(docs, watches)
		if len(outcome.Added)+len(outcome.Kept) == 0 {
			return nil
		}
		return e.check(docs) // those that are kept may name another remote
	})
	return outcome, err
}

// addTo adds the watches that are not in docs.
func (e *edit) addTo(docs map[string]string, watches []Watch) (outcome Restored) {
	for _, w := range watches {
		field := w.Key().field()
		there, ok := docs[field]
		if !ok {
			docs[field] = e.put[field]
			outcome.Added = append(outcome.Added, w)
			continue
		}
		if isSame(there, e.put[field]) {
			outcome.Same++
		} else {
			outcome.Kept = append(outcome.Kept, w)
		}
	}
	slices.SortFunc(outcome.Added, byAppAndRef)
	return outcome
}

// isSame reports whether a stored document, perhaps of another version, is of the same watch as a new one.
func isSame(stored, document string) bool {
	w, err := parse([]byte(stored))
	if err != nil {
		return false
	}
	again, err := w.document()
	return err == nil && again == document
}

// checkNesting returns the error with which write.lua refuses a repository that is not watched yet.
func (r *Registry) checkNesting(ctx context.Context, repo events.RepoPath) error {
	key := repo.Key()
	var above []events.RepoPath
	for at, c := range key {
		if path, err := events.ParseRepoPath(key[:at]); c == '/' && err == nil {
			above = append(above, path)
		}
	}
	watched, err := r.AreWatched(ctx, above)
	if err != nil {
		return err
	}
	if at := slices.Index(watched, true); at >= 0 {
		return nested(key, above[at].Key())
	}
	below, err := r.redis.ZRangeByLex(ctx, r.index(), &redis.ZRangeBy{Min: "[" + key + "/", Max: "(" + key + "0",
		Count: 1}).Result()
	if err != nil {
		return fmt.Errorf("find repositories below %s: %w", repo, err)
	}
	if len(below) > 0 {
		return nested(key, below[0])
	}
	return nil
}
