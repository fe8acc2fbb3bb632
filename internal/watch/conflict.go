package watch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep/events"
)

func conflict(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassConflict, format, args...)
}

// checkLimits returns an error if a repository would have too many watches, or if an extension refuses them together.
func checkLimits(repo events.RepoPath, watches []Watch) error {
	if n := len(watches); n > maxWatches {
		return conflict("%s would have %d watches, the limit is %d; let apps watch fewer of its refs, or use a pattern",
			repo, n, maxWatches)
	}
	for _, e := range extensions {
		if e.Together != nil {
			if err := e.Together(repo, watches); err != nil {
				return err
			}
		}
	}
	return nil
}

// twoRemotes returns the conflict error of two watches of a path whose remotes differ, even if only in case.
func twoRemotes(w, other Watch) error {
	if strings.EqualFold(events.CanonicalRemote(w.URL), events.CanonicalRemote(other.URL)) {
		return conflict("%s is watched at %s by app %s; use the same case in the URL", w.Repo,
			events.CanonicalRemote(other.URL), other.App)
	}
	return conflict("%s is watched at %s by app %s, and would be at %s by app %s; set repo to give one of them "+
		"another path",
		w.Repo, events.CanonicalRemote(other.URL), other.App, events.CanonicalRemote(w.URL), w.App)
}

// checkSameRemote returns an error unless all watches name w's remote.
func checkSameRemote(w Watch, watches []Watch) error {
	for _, other := range watches {
		if events.CanonicalRemote(other.URL) != events.CanonicalRemote(w.URL) {
			return twoRemotes(w, other)
		}
	}
	return nil
}

func nested(repo, other string) error {
	return conflict("%s cannot be watched together with %s: one path is inside the other; set repo to give one of "+
		"them another path", repo, other)
}

// checkCompatible returns an error for each watch that conflicts with another one. name names watch i.
func checkCompatible(watches []Watch, name func(i int) string) error {
	var failed []error
	keys := map[string]int{} // first watch by repository and field
	repos, of := map[string]int{}, map[string][]Watch{}
	for i, w := range watches {
		at := position{w.Repo.Key(), w.Key().field()}.String()
		if first, ok := keys[at]; ok {
			failed = append(failed, fmt.Errorf("%s: %s already watches that ref of %s, on %s", name(i), w.App, w.Repo,
				name(first)))
			continue
		}
		keys[at] = i
		of[w.Repo.Key()] = append(of[w.Repo.Key()], w)
		if first, ok := repos[w.Repo.Key()]; ok {
			if events.CanonicalRemote(watches[first].URL) != events.CanonicalRemote(w.URL) {
				failed = append(failed, fmt.Errorf("%s: %w", name(i), twoRemotes(w, watches[first])))
			}
			continue
		}
		repos[w.Repo.Key()] = i
	}
	for i, w := range watches {
		key := w.Repo.Key()
		for end := strings.LastIndexByte(key, '/'); end > 0; end = strings.LastIndexByte(key[:end], '/') {
			if above, ok := repos[key[:end]]; ok && repos[key] == i {
				failed = append(failed, fmt.Errorf("%s: %w", name(i), nested(w.Repo.String(), watches[above].Repo.String())))
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if err := checkLimits(of[key][0].Repo, of[key]); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
