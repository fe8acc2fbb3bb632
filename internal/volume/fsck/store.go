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
	"slices"
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

// verified is the content of a checked store. It is read with go-git, unlike in a sync.
type verified struct {
	storage *filesystem.ObjectStorage
	has     map[object.ID]struct{}
}

func (o *verified) close() { _ = o.storage.Close() }

// verifyPacks is the maximum number of packs open for reading objects.
const verifyPacks = 16

// verifyReaders returns how many files are read concurrently.
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
	sum := sha1.New()
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
		c.addBytes(size)
		index, err := decodePackIndex(filepath.Join(dir, base+".idx"))
		switch {
		case err != nil:
			c.Found(path, "cannot read its index: %v", err)
		case index.PackfileChecksum != sum:
			c.Found(path, "its index belongs to another pack")
		default:
			_ = c.checkPacked(path, index, o) // fails only if ctx is done, checked below
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
	}
	return nil
}

// packSum verifies and returns the checksum at the end of a pack.
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
		return sum, 0, errors.New("too short for a pack")
	}
	hasher := sha1.New()
	body := io.NewSectionReader(file, 0, size-int64(len(sum)))
	if _, err := io.Copy(object.CancelWriter{Ctx: ctx, Writer: hasher}, body); err != nil {
		return sum, 0, err
	}
	if _, err := file.ReadAt(sum[:], size-int64(len(sum))); err != nil {
		return sum, 0, err
	}
	if object.IDOf(hasher.Sum(nil)) != object.IDOf(sum[:]) {
		return sum, 0, errors.New("does not match its checksum")
	}
	return sum, size, nil
}

// decodePackIndex reads an index; go-git verifies its checksum.
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

// shardObjects is the number of objects per concurrent reader of a pack.
const shardObjects = 5000

// checkPacked checks every object in a pack's index.
func (c *Checker) checkPacked(path string, index *idxfile.MemoryIndex, o *verified) error {
	var names []object.ID
	entries, err := index.EntriesByOffset()
	if err != nil {
		c.Found(path, "cannot read its index: %v", err)
		return nil
	}
	for {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.Found(path, "cannot read its index: %v", err)
			return nil
		}
		id := object.IDOf(entry.Hash[:])
		names = append(names, id)
		o.has[id] = struct{}{}
	}
	shards := min(verifyReaders(), 1+len(names)/shardObjects)
	each := (len(names) + shards - 1) / shards
	g, ctx := errgroup.WithContext(c.ctx)
	for start := 0; start < len(names); start += each {
		g.Go(func() error { return c.checkShard(ctx, path, names[start:min(start+each, len(names))]) })
	}
	return g.Wait()
}

// checkShard checks some of a pack's objects with its own index and reader, which are not safe for concurrent use.
func (c *Checker) checkShard(ctx context.Context, path string, names []object.ID) error {
	index, err := decodePackIndex(strings.TrimSuffix(path, ".pack") + ".idx")
	if err != nil {
		c.Found(path, "cannot read its index: %v", err)
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
	obj, err := pack.Get(gitHash(name))
	if err != nil {
		return err
	}
	reader, err := obj.Reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	hasher := object.SHA1.NewHasher(obj.Type(), obj.Size())
	if _, err := io.Copy(hasher, reader); err != nil {
		return err
	}
	if hasher.ID() != name {
		return errors.New("hash does not match its name")
	}
	return nil
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
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("commit %s: panic: %v", h, cause)
		}
	}()
	content, err := o.read(plumbing.CommitObject, h)
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	if commit, err = object.ParseCommit(h, content); err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	return commit, nil
}

func (o *verified) read(kind plumbing.ObjectType, h object.ID) ([]byte, error) {
	obj, err := o.storage.EncodedObject(kind, gitHash(h))
	if err != nil {
		return nil, err
	}
	reader, err := obj.Reader()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}

// gitHash converts an ID for go-git.
func gitHash(h object.ID) (hash plumbing.Hash) {
	copy(hash[:], h.Bytes())
	return hash
}

// tree reads the entries of a folder.
func (o *verified) tree(h object.ID) (entries []object.TreeEntry, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("tree %s: panic: %v", h, cause)
		}
	}()
	content, err := o.read(plumbing.TreeObject, h)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	if entries, err = object.ParseTree(h, content); err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	return entries, nil
}

// walkCommit calls fn for every file of a commit, with its path relative to the tree.
func (o *verified) walkCommit(ctx context.Context, commit object.ID, fn func(path string, entry object.TreeEntry) error) error {
	decoded, err := o.commit(commit)
	if err != nil {
		return err
	}
	return o.walkTree(ctx, decoded.TreeHash, "", fn)
}

// dropLeaving deletes the links that lead out of the tree; unless resolved, those whose targets point out of it, as in trees of
// older versions.
func (o *verified) dropLeaving(wanted map[string]object.TreeEntry, links []string, commit object.ID, resolved bool) error {
	decoded, err := o.commit(commit)
	if err != nil {
		return err
	}
	slices.Sort(links) // as in a build
	leave := checkout.NewLinks(decoded.TreeHash, o.tree, o.linkTarget).Leave
	if !resolved {
		leave = func(at string) (bool, error) {
			target, err := o.linkTarget(wanted[at].Hash)
			return checkout.TargetLeaves(at, target), err
		}
	}
	for _, name := range links {
		leaves, err := leave(name)
		if err != nil {
			return err
		}
		if leaves {
			delete(wanted, name)
		}
	}
	return nil
}

func (o *verified) linkTarget(link object.ID) (string, error) {
	obj, err := o.storage.EncodedObject(plumbing.BlobObject, gitHash(link))
	if err != nil {
		return "", fmt.Errorf("blob %s: %w", link, err)
	}
	reader, err := obj.Reader()
	if err != nil {
		return "", fmt.Errorf("blob %s: %w", link, err)
	}
	defer reader.Close()
	target, err := io.ReadAll(io.LimitReader(reader, object.MaxLinkTarget+1))
	if err != nil {
		return "", fmt.Errorf("blob %s: %w", link, err)
	}
	return string(target), nil
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
