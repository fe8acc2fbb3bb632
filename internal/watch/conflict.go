package watch

import (
	"errors"
	"fmt"
	"strings"

	"lockstep/events"
)

func conflict(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassConflict, format, args...)
}

func tooMany(repo events.RepoPath, n int) error {
	if n <= mostWatches {
		return nil
	}
	return conflict("%s would have %d watches, and may have %d; let apps watch fewer refs of it, or a pattern", repo, n, mostWatches)
}

// twoRemotes refuses w, for there is the other. The volume tells remotes apart by case too.
func twoRemotes(w, other Watch) error {
	if strings.EqualFold(events.CanonicalRemote(w.URL), events.CanonicalRemote(other.URL)) {
		return conflict("%s is watched at %s by app %s; spell the URL that way, case and all", w.Repo, events.CanonicalRemote(other.URL), other.App)
	}
	return conflict("%s is watched at %s by app %s, and would be at %s by app %s; give one of them another path, with repo",
		w.Repo, events.CanonicalRemote(other.URL), other.App, events.CanonicalRemote(w.URL), w.App)
}

// oneRemote refuses w beside watches of its repository that name another remote.
func oneRemote(w Watch, watches []Watch) error {
	for _, other := range watches {
		if events.CanonicalRemote(other.URL) != events.CanonicalRemote(w.URL) {
			return twoRemotes(w, other)
		}
	}
	return nil
}

func related(repo, other string) error {
	return conflict("%s cannot be watched beside %s: one's folder would be in the other's; give one of them another path, with repo", repo, other)
}

// compatible refuses watches that cannot be together. name says which one is meant.
func compatible(watches []Watch, name func(i int) string) error {
	var failed []error
	keys := map[string]int{} // by repository and field: the first
	repos := map[string]int{}
	for i, w := range watches {
		at := position{w.Repo.Key(), w.Key().field()}.String()
		if first, ok := keys[at]; ok {
			failed = append(failed, fmt.Errorf("%s: %s watches that of %s already, on %s", name(i), w.App, w.Repo, name(first)))
			continue
		}
		keys[at] = i
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
				failed = append(failed, fmt.Errorf("%s: %w", name(i), related(w.Repo.String(), watches[above].Repo.String())))
			}
		}
	}
	return errors.Join(failed...)
}
