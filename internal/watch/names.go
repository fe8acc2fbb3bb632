package watch

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/events"
)

// Offer is what a remote has to publish: as a poll has listed it, or as the volume knows it without asking.
type Offer struct {
	Default events.Ref                 // the default branch; zero for none
	Has     func(events.Ref) bool      // of branches, tags and commits
	Refs    func() []events.Ref        // branches and tags, in any order, for patterns
	Changed func(events.Ref) time.Time // when a branch has changed; zero if it has not since the first poll
}

// OfferOf returns an offer of refs that have changed at these times.
func OfferOf(main events.Ref, changed map[events.Ref]time.Time) Offer {
	return Offer{
		Default: main,
		Has:     func(ref events.Ref) bool { _, ok := changed[ref]; return ok },
		Refs:    func() []events.Ref { return slices.Collect(maps.Keys(changed)) },
		Changed: func(ref events.Ref) time.Time { return changed[ref] },
	}
}

// Names are what the watches of a repository publish of an [Offer].
type Names struct {
	Kept   [][]events.Ref      // by watch, sorted by name
	Left   [][]events.Ref      // by watch: refs that its pattern matches, but does not keep
	Wanted map[events.Ref]bool // all that are kept
	Plain  events.Ref          // the default branch, if a watch keeps it; zero for none
}

// NamesOf returns what is published of a watched repository: it is a function of its watches and of the refs of its
// remote. Polls, syncs, removals and reconciliation call it; webhooks only say when to ask the remote.
//
//	a watch of           keeps
//	the default branch   the default branch, if there is one
//	a ref                the ref, if the remote has it
//	a commit             the commit: only a sync shows whether the remote has it
//	a pattern            the refs that it matches, up to its limit: of branches those that changed last, and of these the
//	                     first by name, of tags the last by version
//
// A ref that any watch keeps is published: the default branch under the plain name, others under their own. A branch
// that had its own name when it became the default one has both, so that its readers see no gap.
func NamesOf(watches []Watch, of Offer) Names {
	n := Names{Wanted: map[events.Ref]bool{}}
	for _, w := range watches {
		kept, left := w.keeps(of)
		n.Kept, n.Left = append(n.Kept, kept), append(n.Left, left)
		for _, ref := range kept {
			n.Wanted[ref] = true
		}
	}
	if n.Wanted[of.Default] {
		n.Plain = of.Default
	}
	return n
}

// keeps splits the refs that a watch selects into those that it keeps and those that it leaves out.
func (w Watch) keeps(of Offer) (kept, left []events.Ref) {
	ref, isOne := w.Ref.Ref()
	switch {
	case w.Ref.IsDefault() && of.Default.IsZero(), isOne && !w.Ref.IsDefault() && !of.Has(ref):
		return nil, nil
	case w.Ref.IsDefault():
		return []events.Ref{of.Default}, nil
	case isOne:
		return []events.Ref{ref}, nil
	}
	for _, ref := range of.Refs() {
		if w.Ref.Matches(ref) {
			kept = append(kept, ref)
		}
	}
	if limit := w.Limit(); len(kept) > limit {
		slices.SortFunc(kept, func(a, b events.Ref) int {
			if a.IsTag() && b.IsTag() {
				return byVersion(b, a)
			}
			return cmp.Or(of.Changed(b).Compare(of.Changed(a)), byName(a, b))
		})
		kept, left = kept[:limit], kept[limit:]
	}
	slices.SortFunc(kept, byName)
	return kept, left
}

// Limit returns how many of the refs that the pattern of the watch matches are kept.
func (w Watch) Limit() int { return cmp.Or(w.MaxRefs, DefaultMaxRefs) }

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
