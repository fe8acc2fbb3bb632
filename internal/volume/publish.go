package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// publish builds the plan's tree where readers cannot see it, and links every name to it. It returns the tree's path
// relative to the root.
func (s *syncer) publish(ctx context.Context) (tree string, published bool, err error) {
	if err = s.obtainAndBuild(ctx); err != nil {
		if err = s.obtainAgain(ctx, err); err == nil {
			err = s.obtainAndBuild(ctx)
		}
	}
	if err != nil {
		return "", false, err
	}
	if s.tree == "" {
		return s.v.relative(s.f.tree(s.now.tree)), false, s.f.guarded(ctx, s.req.Fence, s.recordDefault)
	}
	s.v.done("built")
	if err := s.v.confirm(ctx, s.req.Confirm); err != nil {
		return "", false, err
	}
	tree = s.tree
	if err := s.f.guarded(ctx, s.req.Fence, s.flip); err != nil {
		return "", false, err
	}
	s.v.done("flipped")
	_ = s.retireReplaced(ctx, s.replaced) // non-critical: the next holder cleans up
	s.v.done("retired")
	return s.v.relative(s.f.tree(tree)), true, nil
}

// obtainAgain fetches everything again if cause shows that the store, or that of a submodule, is damaged. It returns cause if that
// cannot help.
func (s *syncer) obtainAgain(ctx context.Context, cause error) error {
	if s.refetched || !worthRefetching(ctx, cause) {
		return cause
	}
	if err := s.dropParts(ctx); err != nil {
		return err
	}
	if err := s.refetch(ctx); err != nil {
		return err
	}
	if err := s.checkCommit(ctx); err != nil {
		return err
	}
	return s.obtainParts(ctx)
}

// obtainAndBuild builds the tree, unless it is published already: perhaps without submodules whose LFS objects cannot be downloaded.
func (s *syncer) obtainAndBuild(ctx context.Context) error {
	if err := s.obtainLarge(ctx); err != nil || s.isPublished(s.plan.Commit) {
		return err
	}
	return s.build(ctx)
}

// confirm returns nil if the caller still holds its leases according to check, which is optional.
func (v *Volume) confirm(ctx context.Context, check func(context.Context) error) error {
	if check != nil {
		if err := check(ctx); err != nil {
			return fmt.Errorf("confirm the lease: %w", err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("confirm the lease: %w", context.Cause(ctx))
	}
	v.done("confirmed")
	return nil
}

// build makes the tree with its .git and index, gives it its final name, and flushes it to disk.
func (s *syncer) build(ctx context.Context) error {
	if err := s.takeSlot(ctx); err != nil {
		return err
	}
	s.progress.begin(events.PhaseBuild, "files", 0)
	dst := s.f.build(s.req.Fence)
	files, err := s.update(ctx, dst)
	if files == nil && err == nil {
		files, err = s.checkOut(ctx, dst)
	}
	if err != nil {
		return err
	}
	s.v.done("checked out")
	if err := s.writeGitDir(dst, files); err != nil {
		return err
	}
	s.v.done("indexed")
	s.progress.begin(events.PhasePublish, "", 0)
	s.meter.countBuilt(dst, files)
	path, err := unusedPath(s.f.tree(fmt.Sprintf("%d-%.12s", s.req.Fence, s.plan.Commit)))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.f.trees(), 0o755); err != nil {
		return disk.Error("build the tree", err)
	}
	if err := os.Rename(dst, path); err != nil {
		return disk.Error("build the tree", err)
	}
	s.tree = filepath.Base(path)
	return disk.Error("build the tree", errors.Join(s.flushLarge(), s.flushTree(ctx, path, files)))
}

// pathsIn returns the full paths of files in a tree.
func pathsIn(tree string, files []string) []string {
	paths := make([]string, len(files))
	for i, path := range files {
		paths[i] = filepath.Join(tree, filepath.FromSlash(path))
	}
	return paths
}

// checkOut checks the plan out into dst, which it empties first.
func (s *syncer) checkOut(ctx context.Context, dst string) (*checkout.Files, error) {
	items, err := s.plan.Items()
	if err != nil { // the last tree is unusable
		if s.plan, err = checkout.NewPlan(ctx, s.objects, s.plan.Commit, nil, s.v.cfg.MaxTreeFiles); err != nil {
			return nil, err
		}
		if items, err = s.plan.Items(); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(s.f.discard(dst), os.MkdirAll(dst, 0o755)); err != nil {
		return nil, disk.Error("build the tree", err)
	}
	s.progress.begin(events.PhaseBuild, "files", int64(len(items)))
	return s.plan.Build(ctx, s.objects, items, dst, s.v.cfg.Links, s.v.cfg.checkoutLimits(), s.progress.count)
}

// writeGitDir writes the tree's .git.
func (s *syncer) writeGitDir(dst string, files *checkout.Files) error {
	alternates, err := filepath.Rel(filepath.Join(checkout.GitDirOf(dst).Dir, "objects"), filepath.Join(s.store.dir, "objects"))
	if err == nil {
		err = files.WriteGit(dst, s.tip.Ref.String(), s.plan.Commit, s.history, s.v.cfg.Links, alternates)
	}
	return disk.Error("write the tree's .git", err)
}

// lastTree opens the tree to share files with: the one published for this ref, or its prepared copy, else the default
// branch's, else nil.
func (s *syncer) lastTree() *checkout.Tree {
	for _, name := range []string{s.names[0], s.binding.Repo.String()} {
		now := s.v.current(s.f, s.binding, name)
		if s.last != nil || now.tree == "" {
			continue
		}
		if now == s.now && now.ref == s.tip.Ref.String() {
			if s.last = s.openPrepared(now.tree); s.last != nil {
				s.prepared = now.tree
				continue
			}
		}
		s.last = checkout.OpenTree(s.f.tree(now.tree), s.v.cfg.Links)
	}
	return s.last
}

func (s *syncer) checkNames() error {
	for _, name := range s.names {
		if err := s.v.checkName(s.f, name, s.binding.Remote); err != nil {
			return err
		}
	}
	return nil
}

// flip links every name to the new tree. The caller holds the file lock.
func (s *syncer) flip() error {
	if err := s.checkNames(); err != nil {
		return err
	}
	tree := s.tree
	s.tree = "" // it may be published from here on, so discard must not delete it
	for _, name := range s.names {
		old, err := s.v.readLink(s.f, s.v.publishedPath(name))
		if err != nil {
			return disk.Error("read a published name", err)
		}
		if old != "" && !slices.Contains(s.replaced, old) {
			s.replaced = append(s.replaced, old)
		}
		if err := s.v.flip(s.f, name, tree, s.req.Fence); err != nil {
			return err
		}
	}
	return s.recordDefault()
}

// recordDefault records the default branch in the binding. The caller holds the file lock.
func (s *syncer) recordDefault() error {
	if !s.tip.IsDefault || s.binding.Default == s.tip.Ref {
		return nil
	}
	s.binding.Default = s.tip.Ref
	return s.f.writeBinding(s.binding)
}

// discard deletes the unpublished work of a failed sync.
func (s *syncer) discard() {
	if s.tree != "" {
		_ = os.RemoveAll(s.f.tree(s.tree))
	}
	_ = os.RemoveAll(s.f.build(s.req.Fence))
}
