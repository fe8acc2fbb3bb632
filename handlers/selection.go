package handlers

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// A pattern keeps all refs that it matches, up to the limit of its watch. pick alone decides which, for
// webhooks, polls and removals. Of branches it needs to know when they have changed. The volume has both
// sources of that: the refs that the last poll has listed, each with the time at which its commit has
// changed, and the time at which a later commit was published. A branch that a webhook announces changes now,
// so it is kept. If there are too many then, its sync requests a poll, which removes others.

// pick splits refs that a pattern matches into those that are kept and those that are left out: of branches
// those that changed last, and of these the first by name, are kept, of tags the last by version.
func pick(w watch.Watch, matching []events.Ref, changed func(events.Ref) time.Time) (kept, left []events.Ref) {
	limit := maxRefs(w)
	if len(matching) <= limit {
		return matching, nil
	}
	slices.SortFunc(matching, func(a, b events.Ref) int {
		switch {
		case isTag(a) && isTag(b):
			return byVersion(b, a)
		}
		return cmp.Or(changed(b).Compare(changed(a)), byName(a, b))
	})
	return matching[:limit], matching[limit:]
}

// maxRefs returns how many of the refs that the pattern of a watch matches are kept.
func maxRefs(w watch.Watch) int { return cmp.Or(w.MaxRefs, watch.DefaultMaxRefs) }

func isTag(ref events.Ref) bool { return strings.HasPrefix(ref.String(), "refs/tags/") }

// storedRefs are the refs of a repository that are known without asking its remote.
type storedRefs struct {
	published volume.Published
	listed    map[events.Ref]volume.ListedRef
}

func (h *Handlers) storedRefs(repo events.RepoPath) (s storedRefs, err error) {
	if s.published, _, err = h.Volume.Published(repo); err != nil {
		return storedRefs{}, err
	}
	s.listed, err = h.Volume.ListedRefs(repo)
	return s, err
}

// storedOnce returns a function that reads the stored refs when it is first called. They stay the same as
// long as this lease publishes nothing.
func (h *Handlers) storedOnce(repo events.RepoPath) func() (storedRefs, error) {
	return sync.OnceValues(func() (storedRefs, error) { return h.storedRefs(repo) })
}

// picks reports whether a pattern keeps a ref that it matches.
func (s storedRefs) picks(w watch.Watch, ref events.Ref) bool {
	refs := slices.Concat(matching(w.Ref, maps.Keys(s.listed)), matching(w.Ref, maps.Keys(s.published.Commits)),
		[]events.Ref{ref})
	slices.SortFunc(refs, byName)
	kept, _ := pick(w, slices.Compact(refs), func(one events.Ref) time.Time {
		published, listed := s.published.Changed[one], s.listed[one]
		if s.published.Commits[one] != listed.Commit && published.After(listed.Changed) {
			return published
		}
		return listed.Changed
	})
	return slices.Contains(kept, ref)
}

// keeps reports whether a watch keeps a ref that may be published.
func (s storedRefs) keeps(w watch.Watch, ref events.Ref) bool {
	switch {
	case w.Ref.IsDefault():
		return ref == s.published.Plain
	case !w.Ref.Matches(ref):
		return false
	}
	return !w.Ref.IsPattern() || s.picks(w, ref)
}

// checkPicked refuses a change of a tag that the patterns of its app leave out. A branch is kept, because it
// changes now.
func checkPicked(change events.Change, selecting []watch.Watch, storedRefs func() (storedRefs, error)) error {
	if !isTag(change.Ref) || !slices.ContainsFunc(selecting, func(w watch.Watch) bool { return w.Ref.IsPattern() }) {
		return nil
	}
	stored, err := storedRefs()
	if err != nil {
		return err
	}
	limit := 0
	for _, w := range selecting {
		if !w.Ref.IsPattern() || stored.picks(w, change.Ref) {
			return nil
		}
		limit = max(limit, maxRefs(w))
	}
	return unwatched("%s of %s is left out: it is not among the last %d tags by version, the limit of the watch of "+
		"%s; raise --max-refs to keep it",
		change.Ref, change.Repo, limit, change.App)
}

// pollIfExceeded requests a poll, which removes others, if a synced ref is published for the first time and
// more refs are published than a pattern that selects it keeps. The caller calls it for no sync that a poll
// requested, which requests the removals itself.
func (h *Handlers) pollIfExceeded(
	job Job, known state.Repo, watches []watch.Watch, synced events.Result,
) ([]events.Change, error) {
	limited := slices.DeleteFunc(slices.Clone(watches), func(w watch.Watch) bool {
		return !w.Ref.IsPattern() || !w.Ref.Matches(synced.Ref)
	})
	if len(limited) == 0 || known.Head(synced.Ref) != "" {
		return nil, nil
	}
	published, _, err := h.Volume.Published(synced.Repo)
	if err != nil {
		return nil, err
	}
	for _, w := range limited {
		if len(matching(w.Ref, maps.Keys(published.Commits))) > maxRefs(w) {
			return pollAfter(job)
		}
	}
	return nil, nil
}

func matching(s watch.Selector, refs iter.Seq[events.Ref]) (found []events.Ref) {
	for ref := range refs {
		if s.Matches(ref) {
			found = append(found, ref)
		}
	}
	return found
}

// pick returns the refs that a watch keeps of those that the remote has, and notes what it leaves out.
func (p *polled) pick(w watch.Watch) []events.Ref {
	ref, one := w.Ref.Ref()
	switch {
	case w.Ref.IsDefault() && p.refs.InvalidDefault != "":
		p.leaveOut(w, state.InvalidName, []string{p.refs.InvalidDefault})
		return nil
	case w.Ref.IsDefault():
		ref = p.refs.Default
	}
	if _, there := p.commit(ref); one {
		if !there {
			return nil
		}
		return []events.Ref{ref}
	}
	p.listAll()
	all := matching(w.Ref, slices.Values(p.valid))
	kept, left := pick(w, all, func(ref events.Ref) time.Time { return p.listing[ref].Changed })
	names := make([]string, len(left))
	for i, ref := range left {
		names[i] = ref.String()
	}
	p.leaveOut(w, state.BeyondMaxRefs, names)
	invalid := slices.DeleteFunc(slices.Sorted(slices.Values(p.refs.Invalid)), func(name string) bool {
		return !w.Ref.MatchesName(name)
	})
	p.leaveOut(w, state.InvalidName, invalid)
	slices.SortFunc(kept, byName)
	return kept
}

func (p *polled) leaveOut(w watch.Watch, why state.LeftOutReason, refs []string) {
	if len(refs) == 0 {
		return
	}
	one := state.LeftOut{App: w.App, Ref: w.Ref.String(), Reason: why}
	if why == state.BeyondMaxRefs {
		one.MaxRefs = maxRefs(w)
	}
	p.left = append(p.left, state.NewLeftOut(one, refs))
}

// listAll lists all refs of the remote once there is a pattern. Those that no pattern matches yet do not
// count as changed when one does.
func (p *polled) listAll() {
	if p.listing != nil {
		return
	}
	p.listing = map[events.Ref]volume.ListedRef{}
	for name := range p.refs.Commits {
		if ref, err := events.ParseRef(name); err == nil {
			p.valid = append(p.valid, ref)
			p.list(ref)
		}
	}
}

// list records that the remote has a ref, and since when at this commit. One that was changed and changed
// back between two polls counts as unchanged.
func (p *polled) list(ref events.Ref) {
	one := volume.ListedRef{Commit: p.refs.Commits[ref.String()], Changed: p.now}
	last, wasListed := p.listed[ref]
	switch {
	case wasListed && last.Commit == one.Commit:
		one.Changed = last.Changed
	case p.published.Commits[ref] == one.Commit:
		one.Changed = p.published.Changed[ref]
	case p.listed != nil:
		// It has changed since the last poll.
	case p.known.Head(ref) != "": // the volume is lost
		one.Changed = p.known.Synced()
	default:
		one.Changed = time.Time{}
	}
	p.listing[ref] = one
}

// storeListed stores the listed refs for the next poll, and for removals. If the volume cannot be written,
// the poll goes on without: a power cut may lose them, too.
func (p *polled) storeListed(ctx context.Context) error {
	same := func(a, b volume.ListedRef) bool { return a.Commit == b.Commit && a.Changed.Equal(b.Changed) }
	if (p.listing == nil) == (p.listed == nil) && maps.EqualFunc(p.listing, p.listed, same) {
		return nil
	}
	err := p.h.Volume.SetListedRefs(ctx, p.job.Change.Repo, p.job.Fence, p.listing)
	if events.ClassOf(err) == events.ClassVolume {
		cmp.Or(p.h.Log, slog.Default()).WarnContext(ctx, "listed refs not stored", "repo", p.job.Change.Repo.String(),
			"error", err)
		return nil
	}
	return err
}

func byName(a, b events.Ref) int { return cmp.Compare(a.String(), b.String()) }

// byVersion compares numbers in names by value: v1.9 is before v1.10.
func byVersion(a, b events.Ref) int {
	x, y := a.String(), b.String()
	for x != "" && y != "" {
		nx, ny := digits(x), digits(y)
		if nx == 0 || ny == 0 {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x, y = x[1:], y[1:]
			continue
		}
		m, n := strings.TrimLeft(x[:nx], "0"), strings.TrimLeft(y[:ny], "0")
		if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
			return c
		}
		x, y = x[nx:], y[ny:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), byName(a, b))
}

func digits(text string) int {
	return len(text) - len(strings.TrimLeft(text, "0123456789"))
}
