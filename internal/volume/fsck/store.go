package fsck

import (
	"bufio"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"
	"golang.org/x/sync/errgroup"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// verified is what a store was found to hold. It reads by go-git alone, not by what a sync reads by.
type verified struct {
	storage *filesystem.ObjectStorage
	has     map[object.ID]struct{}
}

func (o *verified) close() { _ = o.storage.Close() }

// verifyPacks is how many packs are open at once, beside those that are being checked.
const verifyPacks = 16

// verifyReaders is how many files are read at once.
func verifyReaders() int { return min(runtime.GOMAXPROCS(0), 8) }

// checkObjects inflates every object in a store and hashes it.
func (c *Checker) checkObjects(dir string) (*verified, error) {
	o := &verified{
		has: map[object.ID]struct{}{},
		storage: filesystem.NewObjectStorageWithOptions(dotgit.New(osfs.New(dir)), cache.NewObjectLRU(object.CacheSize),
			filesystem.Options{LargeObjectThreshold: object.LargeObject, MaxOpenDescriptors: verifyPacks}),
	}
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
			o.close()
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
			c.read(n)
			return nil
		})
	}
	return g.Wait()
}

// checkLooseObject inflates a loose object, whose name is the hash of all that it inflates to.
func checkLooseObject(path string, h object.ID) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	inflated, err := zlib.NewReader(bufio.NewReader(file))
	if err != nil {
		return 0, fmt.Errorf("it does not inflate: %w", err)
	}
	sum := sha1.New()
	n, err := io.Copy(sum, inflated)
	if err != nil {
		return n, fmt.Errorf("it does not inflate: %w", err)
	}
	if object.ID(sum.Sum(nil)) != h {
		return n, errors.New("it hashes to something else than its name")
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
		base, ok := strings.CutSuffix(entry.Name(), ".pack")
		if !ok {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		sum, size, err := packSum(c.ctx, path)
		switch {
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case err != nil:
			c.Found(path, "%v", err)
			continue
		}
		c.read(size)
		index, err := decodePackIndex(filepath.Join(dir, base+".idx"))
		switch {
		case err != nil:
			c.Found(path, "its index cannot be read: %v", err)
		case index.PackfileChecksum != sum:
			c.Found(path, "its index is another pack's")
		default:
			_ = c.checkPacked(path, index, o) // it fails when its context is done, and not else
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
	}
	return nil
}

// packSum returns the checksum that a pack ends in, having found it right.
func packSum(ctx context.Context, path string) (sum [20]byte, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return sum, 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return sum, 0, err
	}
	size = info.Size()
	if size < int64(len(sum)) {
		return sum, 0, errors.New("it is too short for a pack")
	}
	hasher := sha1.New()
	body := io.NewSectionReader(file, 0, size-int64(len(sum)))
	if _, err := io.Copy(object.CancelWriter{Ctx: ctx, Writer: hasher}, body); err != nil {
		return sum, 0, err
	}
	if _, err := file.ReadAt(sum[:], size-int64(len(sum))); err != nil {
		return sum, 0, err
	}
	if object.ID(hasher.Sum(nil)) != object.ID(sum) {
		return sum, 0, errors.New("it does not hash to its checksum")
	}
	return sum, size, nil
}

// decodePackIndex reads an index, whose own checksum go-git compares.
func decodePackIndex(path string) (index *idxfile.MemoryIndex, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	index = idxfile.NewMemoryIndex()
	return index, idxfile.NewDecoder(bufio.NewReaderSize(file, 1<<16)).Decode(index)
}

// shardObjects is how many objects of a pack are worth a reader, with an index, of their own.
const shardObjects = 5000

// checkPacked inflates every object that a pack's index names.
func (c *Checker) checkPacked(path string, index *idxfile.MemoryIndex, o *verified) error {
	var names []object.ID
	entries, err := index.EntriesByOffset()
	if err != nil {
		c.Found(path, "its index cannot be read: %v", err)
		return nil
	}
	for {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.Found(path, "its index cannot be read: %v", err)
			return nil
		}
		names = append(names, entry.Hash)
		o.has[entry.Hash] = struct{}{}
	}
	shards := min(verifyReaders(), 1+len(names)/shardObjects)
	each := (len(names) + shards - 1) / shards
	g, ctx := errgroup.WithContext(c.ctx)
	for start := 0; start < len(names); start += each {
		g.Go(func() error { return c.checkShard(ctx, path, names[start:min(start+each, len(names))]) })
	}
	return g.Wait()
}

// checkShard inflates some of a pack's objects. go-git's index and reader are not safe for concurrent use.
func (c *Checker) checkShard(ctx context.Context, path string, names []object.ID) error {
	index, err := decodePackIndex(strings.TrimSuffix(path, ".pack") + ".idx")
	if err != nil {
		c.Found(path, "its index cannot be read: %v", err)
		return nil
	}
	fs := osfs.New(filepath.Dir(path))
	file, err := fs.Open(filepath.Base(path))
	if err != nil {
		c.Found(path, "%v", err)
		return nil
	}
	pack := packfile.NewPackfileWithCache(index, fs, file, cache.NewObjectLRU(object.CacheSize), object.LargeObject)
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

func checkPackedObject(pack *packfile.Packfile, name object.ID) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	obj, err := pack.Get(name)
	if err != nil {
		return err
	}
	reader, err := obj.Reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	hasher := plumbing.NewHasher(obj.Type(), obj.Size())
	if _, err := io.Copy(hasher, reader); err != nil {
		return err
	}
	if hasher.Sum() != name {
		return errors.New("it hashes to something else than its name")
	}
	return nil
}

// checkRefs makes sure that all that the store's refs name is there, with its history.
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
	w := historian{verified: o, ctx: c.ctx, seen: map[object.ID]bool{}, shallow: map[object.ID]bool{}}
	for _, h := range object.ReadShallow(dir) {
		w.shallow[h] = true
	}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSuffix(line, "\n")
		name, ref, ok := strings.Cut(line, " ")
		switch commit := object.ParseID(name); {
		case strings.HasPrefix(line, "#"):
		case !ok || !object.IsID(name) || !strings.HasPrefix(ref, "refs/"):
			c.Found(path, "a line is no ref: %q", line)
		default:
			err := w.follow(commit)
			if err != nil && c.ctx.Err() == nil {
				c.Found(path, "%s is not complete: %v", ref, err)
			}
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
	}
	return nil
}

// historian makes sure that histories are complete, and looks at each object once.
type historian struct {
	*verified
	ctx     context.Context    // of one Verify
	shallow map[object.ID]bool // commits whose parents are not there
	seen    map[object.ID]bool // commits and folders
}

// follow looks at a commit, its history and all below it.
func (w *historian) follow(tip object.ID) error {
	for todo := []object.ID{tip}; len(todo) > 0; {
		h := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if w.seen[h] {
			continue
		}
		w.seen[h] = true
		commit, err := w.commit(h)
		if err == nil {
			err = w.look(commit.TreeHash, "")
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

// look looks at what is below a folder.
func (w *historian) look(folder object.ID, path string) error {
	if w.seen[folder] {
		return nil
	}
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	w.seen[folder] = true
	entries, err := w.tree(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		_, present := w.has[entry.Hash]
		switch {
		case entry.Mode == filemode.Dir:
			err = w.look(entry.Hash, path+entry.Name+"/")
		case !present && entry.Mode != filemode.Submodule:
			err = fmt.Errorf("%q: object %s is missing", path+entry.Name, entry.Hash)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// commit reads a commit.
func (o *verified) commit(h object.ID) (commit *object.Commit, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("commit %s: panic: %v", h, cause)
		}
	}()
	obj, err := o.storage.EncodedObject(plumbing.CommitObject, h)
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	commit = &object.Commit{}
	if err := commit.Decode(obj); err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	return commit, nil
}

// tree reads the entries of a folder.
func (o *verified) tree(h object.ID) (entries []object.TreeEntry, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("tree %s: panic: %v", h, cause)
		}
	}()
	obj, err := o.storage.EncodedObject(plumbing.TreeObject, h)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	tree := &object.Tree{}
	if err := tree.Decode(obj); err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	return tree.Entries, nil
}

// walkCommit calls fn for every file below a commit, whose path is relative to the tree.
func (o *verified) walkCommit(ctx context.Context, commit object.ID, fn func(path string, entry object.TreeEntry) error) error {
	decoded, err := o.commit(commit)
	if err != nil {
		return err
	}
	return o.walkTree(ctx, decoded.TreeHash, "", fn)
}

// leavesTree reports whether a symbolic link at a path is one that the policy is about.
func (o *verified) leavesTree(at string, link object.ID) (bool, error) {
	obj, err := o.storage.EncodedObject(plumbing.BlobObject, link)
	if err != nil {
		return false, fmt.Errorf("blob %s: %w", link, err)
	}
	reader, err := obj.Reader()
	if err != nil {
		return false, fmt.Errorf("blob %s: %w", link, err)
	}
	defer reader.Close()
	target, err := io.ReadAll(io.LimitReader(reader, object.MaxLinkTarget+1))
	if err != nil {
		return false, fmt.Errorf("blob %s: %w", link, err)
	}
	return checkout.LeavesTree(at, string(target)), nil
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
