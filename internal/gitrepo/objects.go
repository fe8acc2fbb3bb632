package gitrepo

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"
)

const (
	cacheSize      = 8 * cache.MiByte
	largeObject    = 1 << 20 // bytes; a larger one is streamed, not held in memory
	openPacks      = 16
	maxMetadata    = 64 << 20 // bytes in a commit, tag or tree
	maxTagsInChain = 16
)

// objects reads Git objects from one or more bare repositories, first to last. It is not safe for
// concurrent use, as go-git's storage is not. Damaged files may make go-git panic: callers recover.
type objects struct {
	dirs      []string
	pools     []*filesystem.ObjectStorage
	inventory *inventory // taken when first needed
}

func openObjects(gitDirs ...string) *objects {
	o := &objects{dirs: gitDirs}
	shared := cache.NewObjectLRU(cacheSize)
	for _, dir := range gitDirs {
		o.pools = append(o.pools, filesystem.NewObjectStorageWithOptions(dotgit.New(osfs.New(dir)), shared, filesystem.Options{
			LargeObjectThreshold: largeObject,
			MaxOpenDescriptors:   openPacks,
		}))
	}
	return o
}

// Close closes the packs that are open.
func (o *objects) Close() {
	for _, pool := range o.pools {
		_ = pool.Close()
	}
}

// EncodedObject returns an object of the given type.
func (o *objects) EncodedObject(t plumbing.ObjectType, h plumbing.Hash) (plumbing.EncodedObject, error) {
	for _, pool := range o.pools {
		obj, err := pool.EncodedObject(t, h)
		if !errors.Is(err, plumbing.ErrObjectNotFound) {
			return obj, err
		}
	}
	return nil, plumbing.ErrObjectNotFound
}

// has reports whether an object is present, as of the first time that it was asked.
func (o *objects) has(h plumbing.Hash) (present bool, err error) {
	if o.inventory == nil {
		if o.inventory, err = takeInventory(o.dirs); err != nil {
			return false, err
		}
	}
	return o.inventory.has(h)
}

// read returns a commit, tag or tree whole, having checked that it hashes to h.
func (o *objects) read(t plumbing.ObjectType, h plumbing.Hash) (*plumbing.MemoryObject, error) {
	obj, err := o.EncodedObject(t, h)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t, h, err)
	}
	if obj.Size() > maxMetadata {
		return nil, hostile("%s %s is %d bytes long", t, h, obj.Size())
	}
	reader, err := obj.Reader()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t, h, err)
	}
	defer reader.Close()
	content, err := io.ReadAll(reader)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t, h, err)
	}
	whole := &plumbing.MemoryObject{}
	whole.SetType(obj.Type())
	if _, err := whole.Write(content); err != nil {
		return nil, err
	}
	if whole.Hash() != h {
		return nil, fmt.Errorf("%s %s hashes to %s", t, h, whole.Hash())
	}
	return whole, nil
}

// commit follows tags from h to a commit.
func (o *objects) commit(h plumbing.Hash) (*object.Commit, error) {
	for range maxTagsInChain {
		obj, err := o.read(plumbing.AnyObject, h)
		if err != nil {
			return nil, err
		}
		switch obj.Type() {
		case plumbing.CommitObject:
			commit := &object.Commit{}
			return commit, commit.Decode(obj)
		case plumbing.TagObject:
			tag := &object.Tag{}
			if err := tag.Decode(obj); err != nil {
				return nil, err
			}
			h = tag.Target
		default:
			return nil, errNoCommit
		}
	}
	return nil, errNoCommit
}

var errNoCommit = errors.New("the ref names no commit")

// tree returns the entries of a tree.
func (o *objects) tree(h plumbing.Hash) ([]object.TreeEntry, error) {
	obj, err := o.read(plumbing.TreeObject, h)
	if err != nil {
		return nil, err
	}
	tree := &object.Tree{}
	if err := tree.Decode(obj); err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	return tree.Entries, nil
}

// copyBlob writes a blob's content to w, and fails unless it hashes to h.
func (o *objects) copyBlob(w io.Writer, h plumbing.Hash) error {
	blob, err := o.EncodedObject(plumbing.BlobObject, h)
	if err != nil {
		return corrupt("blob %s: %w", h, err)
	}
	reader, err := blob.Reader()
	if err != nil {
		return corrupt("blob %s: %w", h, err)
	}
	defer reader.Close()
	hasher := plumbing.NewHasher(plumbing.BlobObject, blob.Size())
	sink := &sink{w: w}
	if _, err := io.Copy(io.MultiWriter(hasher, sink), reader); err != nil {
		if sink.err != nil {
			return volumeError("write blob "+h.String(), sink.err)
		}
		return corrupt("read blob %s: %w", h, err)
	}
	if sum := hasher.Sum(); sum != h {
		return corrupt("blob %s hashes to %s", h, sum)
	}
	return nil
}

// readLink returns a symbolic link's target.
func (o *objects) readLink(h plumbing.Hash) (string, error) {
	var target bytes.Buffer
	if err := o.copyBlob(&boundedBuffer{&target}, h); err != nil {
		return "", err
	}
	if target.Len() == 0 || bytes.IndexByte(target.Bytes(), 0) >= 0 {
		return "", hostile("a symbolic link's target is empty or has a NUL in it")
	}
	return target.String(), nil
}

// sink remembers that it was the writing that failed, not the reading.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.err = err
	return n, err
}

const maxLinkTarget = 4095 // bytes, PATH_MAX less its NUL

type boundedBuffer struct{ *bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxLinkTarget {
		return 0, hostile("a symbolic link's target is longer than %d bytes", maxLinkTarget)
	}
	return b.Buffer.Write(p)
}
