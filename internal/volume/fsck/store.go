package fsck

import (
	"bufio"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sync/errgroup"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// verified is a checked store with the IDs of its intact objects.
type verified struct {
	*object.Store
	has map[object.ID]struct{}
}

// verifyReaders returns how many files are read concurrently.
func verifyReaders() int { return min(runtime.GOMAXPROCS(0), 8) }

// checkObjects inflates every object in a store and hashes it.
func (c *Checker) checkObjects(dir string) (*verified, error) {
	o := &verified{object.Open(dir), map[object.ID]struct{}{}}
	objects := filepath.Join(dir, "objects")
	groups, err := disk.ReadDir(objects)
	if err != nil {
		return nil, disk.Error("list the store's objects", err)
	}
	for _, group := range groups {
		switch dir := filepath.Join(objects, group.Name()); {
		case group.Name() == "pack":
			err = c.checkPacks(dir, o)
		case len(group.Name()) == 2:
			err = c.checkLoose(dir, o)
		}
		if err != nil {
			o.Close()
			return nil, err
		}
	}
	c.report.Objects += int64(len(o.has))
	return o, nil
}

func (c *Checker) checkLoose(dir string, o *verified) error {
	entries, err := disk.ReadDir(dir)
	if err != nil {
		return disk.Error("list the store's objects", err)
	}
	g, ctx := errgroup.WithContext(c.ctx)
	g.SetLimit(verifyReaders())
	for _, entry := range entries {
		name := filepath.Base(dir) + entry.Name()
		if !object.IsID(name) {
			continue
		}
		h := object.ParseID(name)
		o.has[h] = struct{}{}
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			path := filepath.Join(dir, entry.Name())
			n, err := checkLooseObject(path, h)
			if err != nil {
				c.Found(path, "%v", err)
			}
			c.addBytes(n)
			return nil
		})
	}
	return g.Wait()
}

// checkLooseObject inflates a loose object and compares its hash with its name.
func checkLooseObject(path string, h object.ID) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	inflated, err := zlib.NewReader(bufio.NewReader(file))
	if err != nil {
		return 0, fmt.Errorf("does not inflate: %w", err)
	}
	sum := h.Format().NewSum()
	n, err := io.Copy(sum, inflated)
	if err != nil {
		return n, fmt.Errorf("does not inflate: %w", err)
	}
	if object.IDOf(sum.Sum(nil)) != h {
		return n, errors.New("hash does not match its name")
	}
	return n, nil
}

// checkPacks checks every pack in dir with its index.
func (c *Checker) checkPacks(dir string, o *verified) error {
	entries, err := disk.ReadDir(dir)
	if err != nil {
		return disk.Error("list the store's packs", err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".pack") {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		if err := c.checkPack(path, o); c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		} else if err != nil {
			c.Found(path, "%v", err)
		}
	}
	return nil
}

// checkPack checks the checksums of a pack, and then every object in its index.
func (c *Checker) checkPack(path string, o *verified) (err error) {
	defer object.RecoverCorrupt(&err)
	pack, err := object.OpenPack(path)
	if err != nil {
		return err
	}
	defer pack.Close()
	size, err := pack.CheckSums(c.ctx)
	if err != nil {
		return err
	}
	c.addBytes(size)
	names, err := pack.IDs()
	if err != nil {
		return fmt.Errorf("cannot read its index: %w", err)
	}
	for _, name := range names {
		o.has[name] = struct{}{}
	}
	shards := min(verifyReaders(), 1+len(names)/shardObjects)
	each := (len(names) + shards - 1) / shards
	g, ctx := errgroup.WithContext(c.ctx)
	for start := 0; start < len(names); start += each {
		g.Go(func() error { return c.checkShard(ctx, path, names[start:min(start+each, len(names))]) })
	}
	return g.Wait()
}

// shardObjects is the number of objects per concurrent reader of a pack.
const shardObjects = 5000

// checkShard checks some of a pack's objects with its own reader.
func (c *Checker) checkShard(ctx context.Context, path string, names []object.ID) error {
	pack, err := object.OpenPack(path)
	if err != nil {
		return err
	}
	defer pack.Close()
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := checkPackedObject(pack, name); err != nil {
			c.Found(path, "object %s: %v", name, err)
		}
	}
	return nil
}

func checkPackedObject(pack *object.Pack, name object.ID) (err error) {
	defer object.RecoverCorrupt(&err)
	return pack.Check(name)
}

// checkRefs checks that the store's refs are complete, with their histories.
func (c *Checker) checkRefs(dir string, o *verified) error {
	path := filepath.Join(dir, "packed-refs")
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		c.Found(path, "%v", err)
		return nil
	}
	w := historyChecker{verified: o, ctx: c.ctx, visited: map[object.ID]bool{}, shallow: map[object.ID]bool{}}
	for _, h := range object.ReadShallow(dir) {
		w.shallow[h] = true
	}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSuffix(line, "\n")
		name, ref, ok := strings.Cut(line, " ")
		switch commit := object.ParseID(name); {
		case strings.HasPrefix(line, "#"):
		case !ok || !object.IsID(name) || !strings.HasPrefix(ref, "refs/"):
			c.Found(path, "line is not a ref: %q", line)
		default:
			err := w.checkHistory(commit)
			if err != nil && c.ctx.Err() == nil {
				c.Found(path, "%s is incomplete: %v", ref, err)
			}
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
	}
	return nil
}

// historyChecker checks that histories are complete, visiting each object once.
type historyChecker struct {
	*verified
	ctx     context.Context    // of one check
	shallow map[object.ID]bool // commits whose parents are missing
	visited map[object.ID]bool // commits and folders
}

// checkHistory checks a commit, its history and their trees.
func (w *historyChecker) checkHistory(tip object.ID) error {
	for todo := []object.ID{tip}; len(todo) > 0; {
		h := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if w.visited[h] {
			continue
		}
		w.visited[h] = true
		commit, err := w.commit(h)
		if err == nil {
			err = w.checkFolder(commit.TreeHash, "")
		}
		if err != nil {
			return err
		}
		if !w.shallow[h] {
			todo = append(todo, commit.ParentHashes...)
		}
	}
	return nil
}

// checkFolder checks the objects below a folder.
func (w *historyChecker) checkFolder(folder object.ID, path string) error {
	if w.visited[folder] {
		return nil
	}
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	w.visited[folder] = true
	entries, err := w.tree(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		_, present := w.has[entry.Hash]
		switch {
		case entry.Mode == filemode.Dir:
			err = w.checkFolder(entry.Hash, path+entry.Name+"/")
		case !present && entry.Mode != filemode.Submodule:
			err = fmt.Errorf("%q: object %s is missing", path+entry.Name, entry.Hash)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *verified) commit(h object.ID) (commit *object.Commit, err error) {
	defer object.RecoverCorrupt(&err)
	if commit, err = o.Commit(h); err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	if commit.Hash != h {
		return nil, fmt.Errorf("commit %s: is a tag", h)
	}
	return commit, nil
}

// tree reads the entries of a folder.
func (o *verified) tree(h object.ID) (entries []object.TreeEntry, err error) {
	defer object.RecoverCorrupt(&err)
	return o.Tree(h)
}

// walkCommit calls fn for every file of a commit, with its path relative to the tree.
func (o *verified) walkCommit(ctx context.Context, commit object.ID, fn func(path string, entry object.TreeEntry) error) error {
	decoded, err := o.commit(commit)
	if err != nil {
		return err
	}
	return o.walkTree(ctx, decoded.TreeHash, "", fn)
}

// dropLeaving deletes the links that lead out of the tree of a commit and its submodules; unless resolved, those whose targets
// point out of it, as in trees of older versions.
func (o *verified) dropLeaving(own, inParts map[string]object.TreeEntry, commit object.ID, parts checkout.Parts, resolved bool) error {
	decoded, err := o.commit(commit)
	if err != nil {
		return err
	}
	all := checkout.NewLinks(decoded.TreeHash, o.tree, o.linkTarget)
	all.Part = parts.TreeIn(o.Store)
	links := map[string]object.ID{}
	for _, wanted := range []map[string]object.TreeEntry{own, inParts} {
		for name, entry := range wanted {
			if entry.Mode == filemode.Symlink {
				links[name] = entry.Hash
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(links)) { // as in a build
		leaves, err := false, error(nil)
		if resolved {
			leaves, err = all.Leave(name)
		} else {
			var target string
			target, err = o.linkTarget(links[name])
			leaves = checkout.TargetLeaves(name, target)
		}
		if err != nil {
			return err
		}
		if leaves {
			delete(own, name)
			delete(inParts, name)
		}
	}
	return nil
}

func (o *verified) linkTarget(link object.ID) (target string, err error) {
	defer object.RecoverCorrupt(&err)
	return o.ReadLink(link)
}

func (o *verified) walkTree(ctx context.Context, h object.ID, prefix string, fn func(string, object.TreeEntry) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	entries, err := o.tree(h)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := prefix + entry.Name
		if entry.Mode == filemode.Dir {
			err = o.walkTree(ctx, entry.Hash, path+"/", fn)
		} else {
			err = fn(path, entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
