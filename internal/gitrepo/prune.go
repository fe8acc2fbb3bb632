package gitrepo

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// A fetch leaves the objects of a push in the store, each a file. Those that no tree needs any more are
// pruned when the loose ones take half as much as the packs, and again when twice as much is loose as
// was needed then. If the refs alone need much of it, the store is due to be fetched afresh: one pack is
// smaller, and quicker to read.
const (
	minLoose  = 1 << 20 // bytes loose that are never too many
	maxPacks  = 32
	pruneStep = 256 // objects dropped while the file lock is held
)

// sampled are the groups, of 256, that are looked at to tell how much is loose, as "git gc --auto" looks
// at one.
var sampled = []string{"17", "5b", "9e", "d3"}

// afreshMark is a file in a store that says that the next fetch is to be a whole one, into the next store.
const afreshMark = "fetch-afresh"

func (s store) isDueAfresh() bool {
	_, err := os.Lstat(filepath.Join(s.dir, afreshMark))
	return err == nil
}

// isCrowded reports whether pruning the store is likely to be worth while.
func (s store) isCrowded() bool {
	loose := int64(0)
	for _, group := range sampled {
		names, err := readDir(filepath.Join(s.dir, "objects", group))
		if err != nil {
			return false
		}
		loose += space(names)
	}
	packs, err := s.packs()
	return err == nil && loose*256/int64(len(sampled)) > max(looseLimit(packs), 2*s.needed())
}

func (s store) neededFile() string { return filepath.Join(s.dir, "lockstep-needed") }

// needed is what the loose objects took that were needed when the store was last pruned.
func (s store) needed() int64 {
	content, err := os.ReadFile(s.neededFile())
	if err != nil {
		return 0
	}
	bytes, _ := strconv.ParseInt(string(content), 10, 64) // nothing depends on it but when to prune again
	return bytes
}

// packs lists the packs, without their indexes.
func (s store) packs() ([]os.DirEntry, error) {
	names, err := readDir(filepath.Join(s.dir, "objects", "pack"))
	return slices.DeleteFunc(names, func(e os.DirEntry) bool { return filepath.Ext(e.Name()) != ".pack" }), err
}

func looseLimit(packs []os.DirEntry) int64 { return max(space(packs)/2, minLoose) }

// space is what files take on disk.
func space(names []os.DirEntry) (bytes int64) {
	for _, name := range names {
		info, err := name.Info()
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += st.Blocks * 512
		}
	}
	return bytes
}

// prune drops the loose objects of the repository's store that neither its refs nor any tree there is
// come down to. Objects that a stale holder has moved in meanwhile may go as well; it cannot publish.
func (v *Volume) prune(ctx context.Context, f folder, fence uint64) error {
	current, err := f.currentStore()
	if err != nil {
		return err
	}
	needed, err := f.needed(ctx, current)
	if err != nil {
		return err
	}
	loose, err := current.sortLoose(needed)
	if err != nil {
		return volumeError("prune the store", err)
	}
	for step := range slices.Chunk(loose.unneeded, pruneStep) {
		err := f.guarded(ctx, fence, func() error {
			for _, path := range step {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					return volumeError("prune the store", err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return f.guarded(ctx, fence, func() error { return volumeError("prune the store", current.notePruned(loose)) })
}

// notePruned decides what is next, and when to prune again. The caller holds the file lock.
func (s store) notePruned(loose looseObjects) error {
	packs, err := s.packs()
	if err != nil {
		return err
	}
	if loose.byRefs > looseLimit(packs)/2 || len(packs) > maxPacks {
		return s.planAfresh()
	}
	return os.WriteFile(s.neededFile(), strconv.AppendInt(nil, loose.kept, 10), 0o644)
}

// planAfresh marks the store as due to be fetched afresh.
func (s store) planAfresh() error { return os.WriteFile(filepath.Join(s.dir, afreshMark), nil, 0o644) }

// looseObjects is what is loose in a store.
type looseObjects struct {
	unneeded     []string // paths
	kept, byRefs int64    // bytes on disk: of all others, and of those that the refs need
}

func (s store) sortLoose(needed map[plumbing.Hash]need) (loose looseObjects, err error) {
	objects := filepath.Join(s.dir, "objects")
	groups, err := readDir(objects)
	if err != nil {
		return loose, err
	}
	for _, group := range groups {
		if len(group.Name()) != 2 {
			continue
		}
		names, err := readDir(filepath.Join(objects, group.Name()))
		if err != nil {
			return loose, err
		}
		for i, name := range names {
			raw, err := hex.DecodeString(group.Name() + name.Name())
			if err != nil || len(raw) != hashSize {
				continue
			}
			bytes := space(names[i : i+1])
			switch needed[plumbing.Hash(raw)] {
			case byNone:
				loose.unneeded = append(loose.unneeded, filepath.Join(objects, group.Name(), name.Name()))
				continue
			case byRefs:
				loose.byRefs += bytes
			}
			loose.kept += bytes
		}
	}
	return loose, nil
}

// need says who needs an object.
type need int

const (
	byNone need = iota
	byTrees
	byRefs
)

// needed returns the objects that the store's refs and the repository's trees come down to, whichever
// of them are present.
func (f folder) needed(ctx context.Context, s store) (needed map[plumbing.Hash]need, err error) {
	defer recoverCorrupt(&err)
	refs, err := s.refs()
	if err != nil {
		return nil, err
	}
	var ofTrees []plumbing.Hash
	shallow := map[plumbing.Hash]bool{}
	addAll(shallow, s.shallow())
	trees, err := readDir(f.trees())
	if err != nil {
		return nil, volumeError("list the trees", err)
	}
	for _, tree := range trees {
		if _, commit, ok := checkedOut(f.tree(tree.Name())); ok {
			ofTrees = append(ofTrees, plumbing.NewHash(commit))
			addAll(shallow, readShallow(gitDirOf(f.tree(tree.Name())).dir))
		}
	}
	m := &marker{ctx: ctx, objects: openObjects(s.dir), shallow: shallow, needed: map[plumbing.Hash]need{}}
	defer m.objects.Close()
	if err := m.mark(distinct(refs), byRefs); err != nil {
		return nil, err
	}
	return m.needed, m.mark(ofTrees, byTrees)
}

func addAll(set map[plumbing.Hash]bool, hashes []plumbing.Hash) {
	for _, h := range hashes {
		set[h] = true
	}
}

// marker follows objects down from commits.
type marker struct {
	ctx     context.Context // of one prune
	objects *objects
	shallow map[plumbing.Hash]bool // commits whose parents do not count
	needed  map[plumbing.Hash]need
	who     need // that is being followed
}

func (m *marker) mark(roots []plumbing.Hash, who need) error {
	m.who = who
	for _, root := range roots {
		if err := m.commit(root); err != nil {
			return err
		}
	}
	return nil
}

// commit marks a commit, its history and all below it.
func (m *marker) commit(h plumbing.Hash) error {
	for todo := []plumbing.Hash{h}; len(todo) > 0; {
		h, todo = todo[len(todo)-1], todo[:len(todo)-1]
		if m.needed[h] != byNone {
			continue
		}
		if m.ctx.Err() != nil {
			return context.Cause(m.ctx)
		}
		present, err := m.objects.has(h)
		if err != nil {
			return corrupt("prune the store: %w", err)
		}
		if !present {
			continue
		}
		commit, err := m.objects.commit(h)
		if err != nil {
			return corrupt("prune the store: %w", err)
		}
		m.needed[h] = m.who
		if !m.shallow[h] {
			todo = append(todo, commit.ParentHashes...)
		}
		if err := m.tree(commit.TreeHash); err != nil {
			return err
		}
	}
	return nil
}

func (m *marker) tree(h plumbing.Hash) error {
	if m.needed[h] != byNone {
		return nil
	}
	m.needed[h] = m.who
	entries, err := m.objects.tree(h)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil
	}
	if err != nil {
		return corrupt("prune the store: %w", err)
	}
	for _, e := range entries {
		switch e.Mode {
		case filemode.Dir:
			if err := m.tree(e.Hash); err != nil {
				return err
			}
		default:
			if m.needed[e.Hash] == byNone {
				m.needed[e.Hash] = m.who
			}
		}
	}
	return nil
}
