package volume

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
)

// Horizon is how far those who follow results have come.
type Horizon struct {
	Latest    string // id of the newest result; "0-0" when there is none
	Unsettled string // id of the oldest result that somebody has yet to settle; "" when there is none
}

// horizon is a [Horizon] as far as a sync has asked for it.
type horizon struct {
	Horizon
	asked, known bool
}

// retiredTree is a tree that no name links to any more, as its mark tells: the mark's time is when that
// was so first, its content the newest result then. No later result names the tree: results are settled
// under the lease, and the holder who retires a tree settles none that names it.
type retiredTree struct {
	name      string
	age       time.Duration // since it was replaced
	lastNamed string        // the newest result that may name it; "" when that is not known
}

// isNamed reports whether a result that nobody has settled may name the tree.
func (r retiredTree) isNamed(h horizon) bool {
	return !h.known || r.lastNamed == "" || h.Unsettled != "" && !events.EntryAfter(h.Unsettled, r.lastNamed)
}

// ask asks how far results are settled: once a sync at most, and only if there is a tree to retire or
// one that only a result can keep. It is asked under the lease, and before the file lock is taken,
// which is not to be held for as long as an answer may take.
func (s *syncer) queryHorizon(ctx context.Context) error {
	if s.v.cfg.Results == nil || s.horizon.asked {
		return nil
	}
	links, _, err := s.activeLinks()
	if err != nil {
		return err
	}
	unmarked, err := s.f.unlinked(links)
	if err != nil {
		return err
	}
	expired, err := s.f.expired(links, s.v.cfg.Grace)
	if err != nil {
		return err
	}
	if len(unmarked) == 0 && !slices.ContainsFunc(expired, func(t retiredTree) bool { return t.lastNamed != "" && !s.isUnprotected(t) }) {
		return nil
	}
	s.queryResults(ctx)
	return nil
}

func (s *syncer) queryResults(ctx context.Context) {
	if s.v.cfg.Results == nil || s.horizon.asked {
		return
	}
	h, err := s.v.cfg.Results(ctx)
	s.horizon = horizon{h, true, err == nil} // trees stay when there is no answer
}

// retireReplaced retires the trees that the names have just been taken from. The grace of those retired before is for
// the next tidy.
func (s *syncer) retireReplaced(ctx context.Context) error {
	links, err := s.v.links(s.f, s.binding)
	if err != nil {
		return err
	}
	trees, err := s.f.unlinked(links)
	if err != nil || len(trees) == 0 {
		return err
	}
	s.queryResults(ctx)
	return s.f.guarded(ctx, s.req.Fence, func() error { return s.f.markRetired(trees, s.horizon.Latest) })
}

// isOver reports whether a retired tree goes whatever names it.
func (s *syncer) isUnprotected(t retiredTree) bool {
	return s.v.cfg.Results == nil || t.age-s.v.cfg.Grace > s.v.cfg.KeepNamed
}

// unmarked returns the trees that no name links to and that are not marked as retired yet.
func (f folder) unlinked(links map[string]string) (trees []string, err error) {
	linked := linkedTrees(links)
	entries, err := disk.ReadDir(f.trees())
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	for _, entry := range entries {
		_, err := os.Lstat(f.mark(entry.Name()))
		switch {
		case err == nil || linked[entry.Name()] || strings.HasPrefix(entry.Name(), buildPrefix):
		case errors.Is(err, os.ErrNotExist):
			trees = append(trees, entry.Name())
		default:
			return nil, disk.Error("look for a retired tree's mark", err)
		}
	}
	return trees, nil
}

func linkedTrees(links map[string]string) map[string]bool {
	linked := map[string]bool{}
	for _, tree := range links {
		linked[tree] = true
	}
	return linked
}

// retire marks the trees that no name links to any more. The mark's time is when that was so first.
func (f folder) retireUnlinked(links map[string]string, lastNamed string) error {
	trees, err := f.unlinked(links)
	if err != nil || len(trees) == 0 {
		return err
	}
	return f.markRetired(trees, lastNamed)
}

func (f folder) markRetired(trees []string, lastNamed string) error {
	if err := os.MkdirAll(f.retired(), 0o755); err != nil {
		return disk.Error("retire a tree", err)
	}
	for _, tree := range trees {
		if err := os.WriteFile(f.mark(tree), []byte(lastNamed+"\n"), 0o644); err != nil {
			return disk.Error("retire a tree", err)
		}
	}
	return nil
}

// expired returns the retired trees whose grace is over, the oldest first. They may still be pinned,
// or named by results.
func (f folder) expired(links map[string]string, grace time.Duration) (trees []retiredTree, err error) {
	linked := linkedTrees(links)
	marks, err := disk.ReadDir(f.retired())
	if err != nil {
		return nil, disk.Error("list the retired trees", err)
	}
	for _, entry := range marks {
		tree, err := f.readMark(entry.Name())
		switch {
		case linked[entry.Name()] || errors.Is(err, os.ErrNotExist): // a newer holder may be at it, if there is one
		case err != nil:
			return nil, disk.Error("read a retired tree's mark", err)
		case tree.age > grace:
			trees = append(trees, tree)
		}
	}
	slices.SortFunc(trees, func(a, b retiredTree) int { return cmp.Compare(b.age, a.age) })
	return trees, nil
}

func (f folder) readMark(tree string) (retiredTree, error) {
	info, err := os.Stat(f.mark(tree))
	if err != nil {
		return retiredTree{}, err
	}
	content, err := os.ReadFile(f.mark(tree))
	return retiredTree{tree, time.Since(info.ModTime()), strings.TrimSpace(string(content))}, err
}

// spare returns the retired trees that nobody is promised any more, the oldest first: past their grace,
// and not named by an unsettled result, or for too long. Before one is thrown away or made another, it
// is to be claimed. The caller holds the file lock.
func (s *syncer) reclaimable(links map[string]string) ([]retiredTree, error) {
	trees, err := s.f.expired(links, s.v.cfg.Grace)
	return slices.DeleteFunc(trees, func(t retiredTree) bool { return t.isNamed(s.horizon) && !s.isUnprotected(t) }), err
}

// dropMarks removes the marks of trees that are gone, or in use after all.
func (f folder) dropMarks(links map[string]string) error {
	linked := linkedTrees(links)
	marks, err := disk.ReadDir(f.retired())
	if err != nil {
		return disk.Error("list the retired trees", err)
	}
	for _, mark := range marks {
		if _, err := os.Lstat(f.tree(mark.Name())); !errors.Is(err, os.ErrNotExist) && !linked[mark.Name()] {
			continue
		}
		if err := os.Remove(f.mark(mark.Name())); err != nil {
			return disk.Error("drop a retired tree's mark", err)
		}
	}
	return nil
}
