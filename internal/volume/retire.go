package volume

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
)

// Horizon is the position up to which consumer groups have settled the results stream.
type Horizon struct {
	Latest    string // ID of the newest result; "0-0" if there is none
	Unsettled string // ID of the oldest unsettled result; "" if there is none
}

// horizon is the [Horizon] of one sync.
type horizon struct {
	Horizon
	queried, known bool
}

// retiredTree is a tree that is no longer published. The mtime of its mark file is when it was retired, and
// the content is the ID of the newest result at that time. No later result names the tree: results are
// published under the lease, and the holder that retires a tree publishes none that names it.
type retiredTree struct {
	name      string
	age       time.Duration // since it was retired
	lastNamed string        // newest result that may name it; "" if unknown
}

// isNamed reports whether an unsettled result may name the tree.
func (r retiredTree) isNamed(h horizon) bool {
	return !h.known || r.lastNamed == "" || h.Unsettled != "" && !events.EntryAfter(h.Unsettled, r.lastNamed)
}

// queryHorizon queries the horizon at most once per sync, and only if there is a tree to retire or a tree that only an
// unsettled result protects. It runs under the lease but before taking the file lock, because the query may be slow.
func (h *holder) queryHorizon(ctx context.Context) error {
	if h.v.cfg.Results == nil || h.horizon.queried {
		return nil
	}
	links, _, err := h.activeLinks()
	if err != nil {
		return err
	}
	unmarked, err := h.f.unlinked(links)
	if err != nil {
		return err
	}
	expired, err := h.f.expired(links, h.v.cfg.Grace)
	if err != nil {
		return err
	}
	if len(unmarked) == 0 && !slices.ContainsFunc(expired, func(t retiredTree) bool {
		return t.lastNamed != "" && !h.isUnprotected(t)
	}) {
		return nil
	}
	h.queryResults(ctx)
	return nil
}

func (h *holder) queryResults(ctx context.Context) {
	if h.v.cfg.Results == nil || h.horizon.queried {
		return
	}
	results, err := h.v.cfg.Results(ctx)
	h.horizon = horizon{results, true, err == nil} // without an answer, trees stay
}

// retireReplaced retires the trees that names linked to before. If the holder is killed before, tidy retires them.
func (h *holder) retireReplaced(ctx context.Context, replaced []string) error {
	var trees []string
	for _, tree := range replaced {
		linked, err := h.v.isLinked(h.f, h.binding, tree)
		if err != nil {
			return err
		}
		if !linked {
			trees = append(trees, tree)
		}
	}
	if len(trees) == 0 {
		return nil
	}
	if slices.ContainsFunc(trees, h.f.isPurged) { // without a grace
		return h.tidyNow(ctx)
	}
	h.queryResults(ctx)
	return h.f.guarded(ctx, h.fence, func() error { return h.f.markRetired(trees, h.horizon.Latest) })
}

// isUnprotected reports whether a tree past its grace may be deleted even if an unsettled result names it.
func (h *holder) isUnprotected(t retiredTree) bool {
	return h.v.cfg.Results == nil || t.age-h.v.cfg.Grace > h.v.cfg.KeepNamed
}

// unlinked returns the trees that are not published and not marked as retired yet.
func (f folder) unlinked(links map[string]string) (trees []string, err error) {
	linked := linkedTrees(links)
	entries, err := disk.ReadDir(f.trees())
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	for _, entry := range entries {
		_, err := os.Lstat(f.mark(entry.Name()))
		switch {
		case err == nil || linked[entry.Name()]:
		case errors.Is(err, os.ErrNotExist):
			trees = append(trees, entry.Name())
		default:
			return nil, disk.Error("check a retired tree's mark", err)
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

func (f folder) markRetired(trees []string, lastNamed string) error {
	if len(trees) == 0 {
		return nil
	}
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

// unretire removes the marks of trees that are to be published again, durably: an old one would end the grace early.
func (f folder) unretire(trees iter.Seq[string]) error {
	removed := false
	for tree := range trees {
		switch err := os.Remove(f.mark(tree)); {
		case err == nil:
			removed = true
		case !errors.Is(err, os.ErrNotExist):
			return err
		}
	}
	if !removed {
		return nil
	}
	return disk.SyncDir(f.retired())
}

// expired returns the retired trees past their grace, oldest first. They may be pinned or named by results.
func (f folder) expired(links map[string]string, grace time.Duration) (trees []retiredTree, err error) {
	linked := linkedTrees(links)
	marks, err := disk.ReadDir(f.retired())
	if err != nil {
		return nil, disk.Error("list the retired trees", err)
	}
	for _, entry := range marks {
		tree, err := f.readMark(entry.Name())
		switch {
		case linked[entry.Name()] || errors.Is(err, os.ErrNotExist): // a newer holder may have removed it
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

// reclaimable returns the retired trees that may be deleted, oldest first: past their grace, and not named by
// an unsettled result or past KeepNamed. They must be claimed first. The caller holds the file lock.
func (h *holder) reclaimable(links map[string]string) ([]retiredTree, error) {
	trees, err := h.f.expired(links, h.v.cfg.Grace)
	return slices.DeleteFunc(trees, func(t retiredTree) bool { return t.isNamed(h.horizon) && !h.isUnprotected(t) }), err
}

// dropMarks removes the marks of trees that are gone or published again.
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
