package volume

import (
	"context"
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
	"lockstep/internal/git/wire"
)

// build makes at To every tree that a name of From links to, unless To has that name already.
func (m *mover) build(ctx context.Context) error {
	if err := m.linkCurrentStore(ctx); err != nil {
		return err
	}
	made := map[string]string{} // trees of To, by From's
	m.built = map[string]string{}
	for _, path := range slices.Sorted(maps.Keys(m.links)) {
		tree, name := m.links[path], m.newName(path)
		if err := m.v.checkName(m.to, name); err != nil { // now, before it is built for nothing
			return err
		}
		if m.v.current(m.to, m.at.binding, name).tree != "" {
			continue
		}
		if _, tried := made[tree]; !tried {
			err := m.buildTree(ctx, tree)
			if err != nil && (events.ClassOf(err) != events.ClassCorrupt || ctx.Err() != nil) {
				return err
			} // of what is damaged, the next sync of To fetches the ref
			made[tree], m.at.tree = m.at.tree, ""
		}
		if made[tree] != "" {
			m.built[name] = made[tree]
		}
	}
	m.v.done("built")
	return nil
}

// buildTree makes one of From's trees anew at To, of the same files. Nothing is made of what is no whole tree.
func (m *mover) buildTree(ctx context.Context, tree string) error {
	path := m.from.tree(tree)
	name, commit, ok := checkout.RefAndCommit(path)
	ref, err := events.ParseRef(name)
	if !ok || err != nil {
		return nil
	}
	in, err := m.storeFor(ctx, tree)
	if err != nil {
		return err
	}
	s := m.at
	s.use(in)
	h := object.ParseID(commit)
	s.tip = wire.Tip{Ref: ref, Want: h, Commit: h}
	s.history = checkout.History{Depth: checkout.GitDirOf(path).Depth(), Shallow: object.ReadShallow(checkout.GitDirOf(path).Dir)}
	s.plan, err = checkout.NewPlan(ctx, s.objects, h, checkout.OpenTree(path, m.v.cfg.Links), m.v.cfg.MaxTreeFiles)
	if err != nil {
		return err
	}
	return s.build(ctx)
}

// linkCurrentStore gives To a second name of all that From's store has, unless To has a store already. Each of
// From's generations has its place at To, so that who takes the move up again finds what there is.
func (m *mover) linkCurrentStore(ctx context.Context) error {
	mine, err := m.to.currentStore()
	if err != nil || mine.isBegun() {
		return err
	}
	theirs, err := m.from.currentStore()
	if err != nil || !theirs.isBegun() {
		return err
	}
	if err := m.linkStore(ctx, theirs); err != nil {
		return err
	}
	m.v.done("linked")
	return nil
}

// storeOf returns the store at To for one of From's trees. A tree may read from an older generation than the
// current one, which is linked for it; but never beyond To's current store, whose place it would take.
func (m *mover) storeFor(ctx context.Context, tree string) (store, error) {
	n := m.from.generationOf(tree)
	theirs, mine := m.from.generation(n), m.targetStore(n)
	current, err := m.to.currentStore()
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

// place is where a generation of From's store is at To.
func (m *mover) targetStore(n int) store {
	return m.to.generation(m.at.binding.MovedAway.lastStore() + n)
}

// linkStore links a store of From's into its place at To: in private first, then in one step.
func (m *mover) linkStore(ctx context.Context, theirs store) error {
	q, err := object.OpenQuarantine(m.to.quarantine(m.req.ToFence))
	if err != nil {
		return err
	}
	copied, err := theirs.linkTo(ctx, q.Dir)
	if err == nil {
		err = disk.Flush(q.Dir, copied)
	}
	if err != nil {
		return disk.Error("link the store", err)
	}
	place := m.targetStore(theirs.number())
	return m.to.guarded(ctx, m.req.ToFence, func() error {
		// A newer holder of From may have pruned what had not been linked yet.
		if err := m.from.checkFence(m.req.Fence); err != nil {
			return err
		}
		if err := m.to.discard(place.dir); err != nil { // of a sync that got nothing into it
			return err
		}
		err := os.MkdirAll(m.to.stores(), 0o755)
		if err == nil {
			err = os.Rename(q.Dir, place.dir)
		}
		if err == nil {
			err = disk.SyncDir(m.to.stores())
		}
		return disk.Error("link the store", err)
	})
}

// linkTo makes a store at dst, which is there: objects, which never change, under second names, and copies of all
// else. It returns the paths of those.
func (s store) linkTo(ctx context.Context, dst string) (copied []string, err error) {
	if err := object.MakeBare(dst); err != nil {
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
