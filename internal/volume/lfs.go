package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// lfs is the folder of the repository's LFS objects.
func (f folder) lfs() string { return filepath.Join(f.dir, "lfs") }

// largeFiles has the LFS files of one tree.
type largeFiles struct {
	files  *lfs.Files
	store  *lfs.Store
	client *lfs.Client // nil if objects cannot be downloaded

	mu sync.Mutex // held while an object is made available

	usedMu sync.Mutex
	used   []string // paths of files in the store that the new tree may link: an earlier sync may not have flushed them
}

// useLarge opens what the plan's tree needs of LFS. Without a selection it does nothing, unless the last tree has LFS files. The
// returned value is nil if the tree has none.
func (s *syncer) useLarge(ctx context.Context, selection lfs.Selection) (*largeFiles, error) {
	last := s.last.Large()
	if len(selection) == 0 && last == "" {
		return nil, nil
	}
	if err := s.forgetUnreadable(ctx); err != nil {
		return nil, err
	}
	s.largeObjects.Close()
	s.largeObjects = object.Open(s.store.dir)
	files, err := lfs.NewFiles(s.largeObjects, s.plan.Tree(), selection)
	if err != nil {
		return nil, err
	}
	converted, err := s.converted(files, selection, last)
	if err != nil {
		return nil, err
	}
	if len(selection) == 0 {
		s.plan.SetLarge(nil, "", converted)
		return nil, nil
	}
	l := &largeFiles{files: files, store: &lfs.Store{Dir: s.f.lfs(), Fence: s.req.Fence}}
	s.plan.SetLarge(l, selection.String(), converted)
	return l, nil
}

// forgetUnreadable replaces the plan by one without the last tree if that tree's manifest is damaged. A later replacement would lack
// what is set of LFS.
func (s *syncer) forgetUnreadable(ctx context.Context) (err error) {
	if s.last == nil || s.last.IsReadable() {
		return nil
	}
	s.last, s.prepared = nil, ""
	s.plan, err = checkout.NewPlan(ctx, s.objects, s.plan.Commit, nil, s.v.cfg.MaxTreeFiles)
	return err
}

// converted returns a function that reports whether a file is now in LFS, or selected, and was not in the last tree, or the
// reverse. It returns nil if that is so for no file.
func (s *syncer) converted(files *lfs.Files, selection lfs.Selection, last string) (func(path string) bool, error) {
	if s.last == nil {
		return nil, nil
	}
	tree, changed, known := s.plan.LastTree(s.largeObjects, lfs.Decides)
	if !known {
		return func(string) bool { return true }, nil
	}
	if !changed && last == selection.String() {
		return nil, nil
	}
	was, err := lfs.ParseSelection(last)
	if err != nil {
		return func(string) bool { return true }, nil
	}
	before, err := lfs.NewFiles(s.largeObjects, tree, was)
	if err != nil {
		return nil, err
	}
	return func(path string) bool {
		then, err := before.Selects(path)
		now, nowErr := files.Selects(path)
		return err != nil || nowErr != nil || then != now
	}, nil
}

// obtainLarge downloads the LFS objects that the plan's tree needs and the repository does not have.
func (s *syncer) obtainLarge(ctx context.Context) error {
	l, err := s.useLarge(ctx, s.req.LFS)
	if s.large = l; err != nil || l == nil {
		return err
	}
	s.progress.begin(events.PhaseFetch, "", 0)
	if l.client, err = s.lfsClient(ctx, l); err != nil {
		return err
	}
	missing, err := l.missing(ctx, s.plan, s.v.cfg.MaxFileBytes)
	if err != nil {
		return err
	}
	if err := l.store.Retain(missing); err != nil {
		return err
	}
	if err := s.checkLarge(ctx, missing); err != nil {
		return err
	}
	bytes := int64(0)
	for _, o := range missing {
		bytes += o.Size
	}
	s.progress.begin(events.PhaseFetch, "bytes", bytes)
	stored, err := l.client.Download(ctx, missing)
	if s.meter.running {
		s.meter.own += sizeOf(stored)
	}
	if err != nil {
		return fmt.Errorf("fetch LFS objects: %w", err)
	}
	s.v.done("lfs")
	return l.store.Clear()
}

// lfsClient returns the client for the tree's LFS server.
func (s *syncer) lfsClient(ctx context.Context, l *largeFiles) (*lfs.Client, error) {
	server, err := l.files.Config.Server(s.req.URL)
	if err != nil {
		return nil, err
	}
	auth := s.req.AuthFor
	if auth == nil {
		auth = func(context.Context, string) (wire.Auth, error) { return wire.Auth{}, nil }
	}
	sender := &wire.Sender{Network: s.v.net, Remote: s.req.URL, Foreign: s.req.Foreign, Limits: s.v.cfg.wireLimits(s.req.Gate), Auth: auth}
	return &lfs.Client{Server: server, Ref: s.tip.Ref.String(), Sender: sender, Store: l.store, Count: s.progress.count}, nil
}

// missing returns the objects that the store does not have, each once.
func (l *largeFiles) missing(ctx context.Context, plan *checkout.Plan, maxBytes int64) (missing []lfs.Object, err error) {
	defer object.RecoverCorrupt(&err)
	sizes := map[lfs.OID]int64{}
	err = plan.NewFiles(func(path string, _ bool, blob object.ID) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p, ok, err := l.files.Pointer(path, blob)
		if err != nil || !ok || p.Size == 0 {
			return err
		}
		if size, known := sizes[p.OID]; known {
			if size != p.Size {
				return events.Errorf(events.Permanent, events.ClassLFS, "the LFS pointer %q has another size for object %s than another pointer; correct it", path, p.OID)
			}
			return nil
		}
		if p.Size > maxBytes {
			return events.Errorf(events.Permanent, events.ClassQuota, "the LFS object of %q has %s, more than max-file-bytes %s; exclude it or raise the setting",
				path, BytesText(p.Size), BytesText(maxBytes))
		}
		sizes[p.OID] = p.Size
		has, err := l.store.Has(ctx, p)
		if err == nil && !has {
			missing = append(missing, lfs.Object{Pointer: p, Path: path})
		}
		return err
	})
	return missing, err
}

// checkLarge fails if the objects to download do not fit into the limits.
func (s *syncer) checkLarge(ctx context.Context, missing []lfs.Object) error {
	bytes := int64(0)
	for _, o := range missing {
		if bytes += o.Size; bytes > s.v.cfg.MaxTreeBytes {
			return events.Errorf(events.Permanent, events.ClassQuota, "the LFS objects to fetch have more than max-tree-bytes %s; exclude some or raise the setting",
				BytesText(s.v.cfg.MaxTreeBytes))
		}
	}
	if bytes == 0 || !s.meter.running {
		return nil
	}
	return s.checkRoom(ctx, bytes)
}

// Find implements [checkout.Large]. It downloads an object that is damaged or missing in the store.
func (l *largeFiles) Find(ctx context.Context, path string, blob object.ID, executable bool) (*checkout.LargeFile, error) {
	p, ok, err := l.files.Pointer(path, blob)
	if err != nil || !ok || p.Size == 0 {
		if ok && err == nil {
			return &checkout.LargeFile{}, nil
		}
		return nil, err
	}
	has, err := l.store.Has(ctx, p)
	if err != nil {
		return nil, err
	}
	if !has || executable {
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	if !has {
		if err := l.download(ctx, path, p); err != nil {
			return nil, err
		}
	}
	file, err := l.store.File(ctx, p, executable)
	l.usedMu.Lock()
	defer l.usedMu.Unlock()
	l.used = append(l.used, file)
	return &checkout.LargeFile{Path: file, Size: p.Size}, err
}

func (l *largeFiles) download(ctx context.Context, path string, p lfs.Pointer) error {
	if has, err := l.store.Has(ctx, p); err != nil || has { // another goroutine has it now
		return err
	}
	if l.client == nil {
		return object.Corruptf("the LFS object of %q is missing or damaged", path)
	}
	_, err := l.client.Download(ctx, []lfs.Object{{Pointer: p, Path: path}})
	return err
}

// flushLarge makes the objects durable that the new tree links, also those of earlier syncs, which may have ended before they
// flushed them.
func (s *syncer) flushLarge() error {
	l := s.large
	if l == nil || len(l.used) == 0 {
		return nil
	}
	slices.Sort(l.used)
	used := slices.Compact(l.used)
	l.used = nil
	return disk.Error("store LFS objects", disk.FlushChanged(used, nil))
}

func sizeOf(paths []string) (bytes int64) {
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}

// keepLarge prepares a copy of a tree with the same LFS files, none of which is downloaded.
func (s *syncer) keepLarge(ctx context.Context, tree string) (err error) {
	s.req.LFS = lfsOf(tree)
	s.large, err = s.useLarge(ctx, s.req.LFS)
	return err
}

// lfsOf returns what a tree selects of LFS. It returns nil if that is not readable.
func lfsOf(tree string) lfs.Selection {
	selection, err := lfs.ParseSelection(checkout.GitDirOf(tree).Large())
	if err != nil {
		return nil
	}
	return selection
}

// pruneLFS deletes the LFS objects that no tree links, and downloads that were given up.
func (s *syncer) pruneLFS(ctx context.Context) error {
	store := &lfs.Store{Dir: s.f.lfs(), Fence: s.req.Fence}
	if _, err := os.Lstat(store.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var unused []string
	if err := store.Unused(ctx, func(path string) error { unused = append(unused, path); return nil }); err != nil {
		return err
	}
	for step := range slices.Chunk(unused, pruneStep) {
		err := s.f.guarded(ctx, s.req.Fence, func() error {
			for _, path := range step {
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					return disk.Error("delete an LFS object", err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return s.f.guarded(ctx, s.req.Fence, store.Clear)
}

// linkLFS links From's LFS objects to To, unless To has some.
func (m *mover) linkLFS(ctx context.Context) error {
	from, to := m.from.lfs(), m.to.lfs()
	err := filepath.WalkDir(filepath.Join(from, "objects"), func(path string, entry os.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil || entry.IsDir():
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		err = cmp.Or(os.MkdirAll(filepath.Dir(target), 0o755), os.Link(path, target))
		switch {
		case errors.Is(err, os.ErrExist):
			return nil
		case errors.Is(err, unix.EMLINK): // trees have as many links as the file system allows
			return copyFile(ctx, path, target)
		}
		return err
	})
	return disk.Error("link the LFS objects", err)
}

// copyFile copies a file to a path that does not exist.
func copyFile(ctx context.Context, path, target string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	temp := target + disk.TempInfix + "copy"
	to, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(object.CancelWriter{Ctx: ctx, Writer: to}, from)
	if err = cmp.Or(err, to.Close()); err == nil {
		err = os.Rename(temp, target)
	}
	return err
}
