package volume

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// build builds at To each published tree of From, unless To already has the name.
func (m *mover) build(ctx context.Context) error {
	if err := m.at.takeSlot(ctx); err != nil {
		return err
	}
	if err := m.linkCurrentStore(ctx); err != nil {
		return err
	}
	if err := m.linkLFS(ctx); err != nil {
		return err
	}
	if err := m.linkParts(ctx); err != nil {
		return err
	}
	made := map[string]string{} // trees of To by From's
	m.built = map[string]string{}
	for _, path := range slices.Sorted(maps.Keys(m.links)) {
		tree, name := m.links[path], m.newName(path)
		if err := m.v.checkName(m.to, name, m.at.binding.Remote); err != nil { // fail before building
			return err
		}
		if m.v.current(m.to, m.at.binding, name).tree != "" {
			continue
		}
		if _, done := made[tree]; !done {
			built, err := m.buildTree(ctx, tree)
			if err != nil && (events.ClassOf(err) != events.ClassCorrupt || ctx.Err() != nil) {
				return err
			} // the next sync of To fetches the ref of a damaged tree
			made[tree] = built
		}
		if made[tree] != "" {
			m.built[name] = made[tree]
		}
	}
	if err := m.buildViews(ctx); err != nil {
		return err
	}
	m.v.done("built")
	return nil
}

// buildTree builds one of From's trees at To from the same files. It returns "" if the tree is incomplete.
func (m *mover) buildTree(ctx context.Context, tree string) (built string, err error) {
	path := m.from.tree(tree)
	name, commit, ok := checkout.RefAndCommit(path)
	ref, err := events.ParseRef(name)
	if !ok || err != nil {
		return "", nil
	}
	in, err := m.storeFor(ctx, tree)
	if err != nil {
		return "", err
	}
	b := m.at
	b.use(in)
	h := object.ParseID(commit)
	b.ref = ref
	b.history = checkout.History{Depth: checkout.GitDirOf(path).Depth(),
		Shallow: object.ReadShallow(checkout.GitDirOf(path).Dir)}
	b.plan, err = checkout.NewPlan(ctx, b.objects, h, checkout.OpenTree(path, m.v.cfg.Links), m.v.cfg.MaxTreeFiles)
	if err != nil {
		return "", err
	}
	if err := b.keepParts(ctx, path); err != nil {
		return "", err
	}
	if err := b.keepLarge(ctx, path); err != nil {
		return "", err
	}
	return b.build(ctx)
}

// linkCurrentStore links From's current store to To, unless To has a store. Each generation has a fixed place
// at To, so that a repeated move finds it.
func (m *mover) linkCurrentStore(ctx context.Context) error {
	mine, err := m.to.currentStore(m.at.binding.MovedAway)
	if err != nil || mine.isBegun() {
		return err
	}
	theirs, err := m.from.currentStore(m.old.MovedAway)
	if err != nil || !theirs.isBegun() {
		return err
	}
	if err := m.linkStore(ctx, theirs); err != nil {
		return err
	}
	m.v.done("linked")
	return nil
}

// storeFor returns the store at To for one of From's trees. If the tree uses an older generation, it links
// that one, unless the generation is newer than To's current store, which it would replace.
func (m *mover) storeFor(ctx context.Context, tree string) (store, error) {
	n := m.from.generationOf(tree)
	theirs, mine := m.from.generation(n), m.targetStore(n)
	current, err := m.to.currentStore(m.at.binding.MovedAway)
	switch {
	case err != nil || n == 0 || !theirs.isBegun():
		return current, err
	case mine.isBegun():
		return mine, nil
	case mine.number() > current.number():
		return current, nil
	}
	return mine, m.linkStore(ctx, theirs)
}

// targetStore returns the store at To for a generation of From's store.
func (m *mover) targetStore(n int) store {
	return m.to.generation(m.at.binding.MovedAway.lastStore() + n)
}

// linkStore links one of From's stores to its place at To: in quarantine first, then with one rename.
func (m *mover) linkStore(ctx context.Context, theirs store) error {
	q, err := object.OpenQuarantine(m.to.quarantine(m.req.ToFence))
	if err != nil {
		return err
	}
	copied, err := theirs.linkTo(ctx, q.Dir)
	if err == nil {
		err = disk.Flush(ctx, q.Dir, copied)
	}
	if err != nil {
		return disk.Error("link the store", err)
	}
	place := m.targetStore(theirs.number())
	return m.to.guarded(ctx, m.req.ToFence, func() error {
		// A newer holder of From may have pruned objects before they were linked.
		if err := m.from.checkFence(m.req.Fence); err != nil {
			return err
		}
		if err := m.to.discard(place.dir); err != nil { // left by a sync that fetched nothing
			return err
		}
		err := os.MkdirAll(m.to.stores(), 0o755)
		if err == nil {
			err = os.Rename(q.Dir, place.dir)
		}
		if err == nil {
			err = errors.Join(disk.SyncDir(m.to.stores()), m.v.flushStore(place))
		}
		return disk.Error("link the store", err)
	})
}

// linkTo links the store's objects, which never change, into the existing folder dst, and copies everything
// else. It returns the paths of the copies.
func (s store) linkTo(ctx context.Context, dst string) (copied []string, err error) {
	format, _ := object.FormatOf(s.dir)
	if err := object.MakeBare(dst, format); err != nil {
		return nil, err
	}
	objects := filepath.Join(s.dir, "objects")
	err = filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		to := filepath.Join(dst, strings.TrimPrefix(path, s.dir))
		switch below := strings.HasPrefix(path, objects+string(filepath.Separator)); {
		case entry.IsDir():
			return os.MkdirAll(to, 0o755)
		case !entry.Type().IsRegular(), strings.Contains(entry.Name(), disk.TempInfix):
			return nil
		case below:
			return os.Link(path, to)
		}
		content, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(to, content, 0o644)
		}
		copied = append(copied, to)
		return err
	})
	return copied, err
}
