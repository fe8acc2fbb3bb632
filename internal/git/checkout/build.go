package checkout

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// builder checks out a plan into a private folder. It links unchanged files from the last tree, unless the
// folder has them already, and writes all others as new files, since trees share inodes. Several goroutines
// work on batches of items.
type builder struct {
	writer
	prepared bool              // the folder has the unchanged files
	maxBytes int64             // in all files
	count    func(files int64) // counts created files
	items    []Item
	made     manifest     // parallel to items
	folders  int64        // created
	bytes    atomic.Int64 // in the created files
	next     atomic.Int64 // first item of the next batch

	mu        sync.Mutex
	rewritten []string // paths of the entries created in a prepared tree
}

// Build checks out the plan's items into dst, an empty folder. It calls count for each created file, from several
// goroutines.
func (p *Plan) Build(
	ctx context.Context, objects *object.Store, items []Item, dst string, links LinkPolicy, limits Limits,
	count func(files int64),
) (*Files, error) {
	leaving, err := p.leavingLinks(ctx, objects, items, links)
	if err != nil {
		return nil, err
	}
	b := &builder{
		writer: writer{
			objects: objects, format: p.Commit.Format(), links: links, leaving: leaving, large: p.large, filled: p.filled,
		},
		maxBytes: limits.MaxTreeBytes, items: items, count: count,
	}
	last := ""
	if p.last != nil {
		last = p.last.path
	}
	made, written, err := b.build(ctx, dst, last)
	if err != nil {
		return nil, err
	}
	return &Files{
		Written: written, Folders: b.folders, made: made, modes: b.modes, format: b.format, large: p.selects, parts: p.parts,
		isSelection: p.selection != nil,
	}, nil
}

// leavingLinks returns the paths of the links that lead out of the tree, if the policy is to omit or refuse them. An
// incremental plan has none: its links are as in the last tree, from which they were omitted.
func (p *Plan) leavingLinks(
	ctx context.Context, objects *object.Store, items []Item, policy LinkPolicy,
) (leaving map[string]bool, err error) {
	defer object.RecoverCorrupt(&err)
	if policy == LinksKeep || p.incremental {
		return nil, nil
	}
	leaving = map[string]bool{}
	links := p.linksOf(objects)
	for _, it := range items {
		if it.mode != filemode.Symlink {
			continue
		}
		if ctx.Err() != nil { // a million links with long targets take a minute
			return nil, context.Cause(ctx)
		}
		leaves, err := links.Leave(it.path)
		if err != nil {
			return nil, fmt.Errorf("check out %q: %w", it.path, err)
		}
		if leaves {
			leaving[it.path] = true
		}
	}
	return leaving, nil
}

const batchSize = 128 // items

// inParts splits a list into a part for each goroutine, in order.
func inParts[T any](list []T) iter.Seq[[]T] {
	return slices.Chunk(list, max(len(list)/runtime.GOMAXPROCS(0)+1, batchSize))
}

// build checks out the items into dst, an empty folder. It returns the manifest and the paths of new files. last is
// the tree to link from; "" for none.
func (b *builder) build(ctx context.Context, dst, last string) (made manifest, written []string, err error) {
	if err := checkLengths(dst, b.items); err != nil {
		return nil, nil, err
	}
	if !b.prepared {
		if b.modes, err = probeModes(dst); err != nil {
			return nil, nil, buildError(err)
		}
		if err := b.makeFolders(ctx, dst); err != nil {
			return nil, nil, err
		}
	}
	b.made = make(manifest, len(b.items))
	g, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), len(b.items)/batchSize+1) {
		w := &worker{builder: b, ctx: ctx, writer: b.writer.fork()}
		g.Go(func() error { return w.run(dst, last) })
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for i, t := range b.made {
		if t.raw != b.items[i].was.raw && t.mode != filemode.Submodule && !t.isSkipped() && !t.linked {
			written = append(written, t.path)
		}
	}
	return slices.DeleteFunc(b.made, tracked.isSkipped), written, nil
}

// checkLengths fails if readers could not open an item by its path, although folder by folder it can be
// created on some file systems.
func checkLengths(dst string, items []Item) error {
	const spare = 16 // the final name of the tree is a little longer than that of dst
	for _, it := range items {
		if len(dst)+spare+len("/")+len(it.path) > maxPath {
			return buildError(syscall.ENAMETOOLONG)
		}
	}
	return nil
}

// makeFolders creates all folders: those of one depth concurrently, because creating a folder takes much
// longer than linking a file.
func (b *builder) makeFolders(ctx context.Context, dst string) error {
	for _, folders := range foldersByDepth(b.items) {
		g, ctx := errgroup.WithContext(ctx)
		for part := range slices.Chunk(folders, max(len(folders)/runtime.GOMAXPROCS(0)+1, minFolders)) {
			g.Go(func() error { return makeFolders(ctx, dst, part) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		b.folders += int64(len(folders))
	}
	return nil
}

const minFolders = 8 // that are worth a goroutine

// makeFolders creates folders whose parents exist.
func makeFolders(ctx context.Context, dst string, folders []string) error {
	to, err := disk.NewWalker(dst)
	if err != nil {
		return buildError(err)
	}
	defer to.Close()
	for _, folder := range folders {
		if ctx.Err() != nil {
			return stoppedBuild(ctx)
		}
		parent, err := to.Enter(disk.Parent(folder), disk.Dir.Open)
		if err != nil {
			return buildError(err)
		}
		if err := parent.MakeOnly(path.Base(folder)); err != nil {
			return buildError(err)
		}
	}
	return nil
}

// foldersByDepth lists the folders of items, in their order: those in the root, those in these, and so on.
func foldersByDepth(items []Item) (levels [][]string) {
	seen, last := map[string]bool{"": true}, ""
	for _, it := range items {
		folder := disk.Parent(it.path)
		if folder == last {
			continue
		}
		last = folder
		for ; !seen[folder]; folder = disk.Parent(folder) {
			seen[folder] = true
			depth := strings.Count(folder, "/")
			for len(levels) <= depth {
				levels = append(levels, nil)
			}
			levels[depth] = append(levels[depth], folder)
		}
	}
	return levels
}

func stoppedBuild(ctx context.Context) error {
	return fmt.Errorf("build the tree: %w", context.Cause(ctx))
}

// buildError classifies a failure to create an entry. Names are unique within a folder, so a name can exist only
// on a file system that considers two names equal.
func buildError(err error) error {
	if errors.Is(err, os.ErrExist) {
		return object.Hostilef("build the tree: two entries have the same name on this file system: %w", err)
	}
	return disk.Error("build the tree", err)
}

// worker is one goroutine of a builder.
type worker struct {
	*builder
	writer
	ctx context.Context // of the build
}

func (w *worker) run(dst, last string) (err error) {
	defer w.writer.objects.Close()
	defer object.RecoverCorrupt(&err)
	to, err := disk.NewWalker(dst)
	if err != nil {
		return buildError(err)
	}
	defer to.Close()
	from := &disk.Walker{}
	if last != "" {
		if d, err := disk.NewWalker(last); err == nil {
			from = d
			defer from.Close()
		}
	}
	for {
		start := int(w.next.Add(batchSize)) - batchSize
		if start >= len(w.items) {
			return nil
		}
		for i := start; i < min(start+batchSize, len(w.items)); i++ {
			if w.ctx.Err() != nil {
				return stoppedBuild(w.ctx)
			}
			var size int64
			if w.made[i], size, err = w.make(to, from, w.items[i]); err != nil {
				return err
			}
			if w.bytes.Add(size) > w.maxBytes {
				return treeTooLarge(w.maxBytes)
			}
			w.count(1)
		}
	}
}

func treeTooLarge(limit int64) error {
	return object.Quotaf("the files of the tree have more than %d bytes; raise max-tree-bytes in the setting limits "+
		"if the repository is meant to be that large", limit)
}

// make creates an entry and returns its size.
func (w *worker) make(to, from *disk.Walker, it Item) (tracked, int64, error) {
	folder, err := to.Enter(disk.Parent(it.path), disk.Dir.Open)
	if err != nil {
		return tracked{}, 0, buildError(err)
	}
	name := path.Base(it.path)
	if it.was.raw != "" && !w.leaving[it.path] {
		unchanged := w.linkUnchanged
		if w.prepared {
			unchanged = w.keepUnchanged
		}
		size, ok, err := unchanged(folder, from, it, name)
		if err != nil {
			return tracked{}, 0, buildError(err)
		}
		if ok {
			it.was.inPart = it.inPart
			return it.was, size, nil
		}
	}
	if w.prepared {
		w.mu.Lock()
		w.rewritten = append(w.rewritten, it.path)
		w.mu.Unlock()
	}
	return w.writer.write(w.ctx, folder, it.entry, name)
}

// linkUnchanged links a file from the last tree if it is unmodified there, and returns its size. A link beyond the file
// system's limit of links to one file fails, too.
func (w *worker) linkUnchanged(
	folder disk.Dir, from *disk.Walker, it Item, _ string,
) (size int64, ok bool, err error) {
	if it.mode == filemode.Submodule {
		return 0, false, nil
	}
	size, ok = it.was.link(folder, from, it.path, w.modes)
	return size, ok, nil
}

// keepUnchanged reports whether a file of a prepared tree is unmodified, and its size. If not, it removes the file.
func (w *worker) keepUnchanged(folder disk.Dir, _ *disk.Walker, it Item, name string) (size int64, ok bool, err error) {
	st, err := folder.Stat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	case it.mode == filemode.Submodule:
		return 0, st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
	case it.was.isAsWritten(st, w.modes):
		return st.Size, true, nil
	}
	return 0, false, folder.Remove(name, false)
}

// Files describes the files of a new tree.
type Files struct {
	Written    []string // paths of the files that are not hard links
	GitWritten []string // paths of the new or overwritten files of its .git; set by WriteGit
	Changed    []string // of a prepared tree, the folders that are new or have new or removed names; nil: all
	Folders    int64    // number of folders created; 0 if a prepared tree was updated
	made       manifest
	modes      fileModes
	format     object.Format
	large      string // see [GitDir.Large]
	parts      Parts

	isSelection bool // see Plan.Select
}
