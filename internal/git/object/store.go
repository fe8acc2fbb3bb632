package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/objfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"

	"lockstep/internal/disk"
)

// Memory limits.
const (
	CacheSize      = 8 * cache.MiByte
	LargeObject    = 1 << 20  // bytes; larger objects are streamed
	maxMetadata    = 64 << 20 // bytes in a commit, tag or tree
	maxTagsInChain = 16
)

// Store reads Git objects from one or more bare repositories, in order. It is not safe for concurrent use: each
// goroutine needs its own [Store.Fork]. go-git may panic on damaged files: callers defer [RecoverCorrupt].
type Store struct {
	repos  []*repo
	cache  cache.Object
	direct direct
	kept   *Kept
}

// repo is one repository. It lists its packs once, on first use.
type repo struct {
	dir    string // "objects"
	packs  []*pack
	listed bool
	err    error // of listing
}

// pack is a pack and its index. Forks share the index.
type pack struct {
	path   string
	index  *packIndex
	reader *packfile.Packfile // nil until needed
	direct *os.File           // the same file; nil until needed
	forked bool
}

// Open returns a Store that reads the given bare repositories in order.
func Open(gitDirs ...string) *Store {
	o := &Store{cache: cache.NewObjectLRU(CacheSize)}
	for _, dir := range gitDirs {
		o.repos = append(o.repos, &repo{dir: filepath.Join(dir, "objects")})
	}
	return o
}

// Keep lets o return the blobs of kept without reading them.
func (o *Store) Keep(kept *Kept) { o.kept = kept }

// Fork returns a Store of the same repositories for another goroutine, which must be closed before o.
func (o *Store) Fork() *Store {
	fork := &Store{cache: cache.NewObjectLRU(CacheSize), kept: o.kept}
	for _, p := range o.repos {
		p.list()
		same := &repo{dir: p.dir, listed: true, err: p.err}
		for _, k := range p.packs {
			same.packs = append(same.packs, &pack{path: k.path, index: k.index, forked: true})
		}
		fork.repos = append(fork.repos, same)
	}
	return fork
}

// Close closes all open files. It does nothing for a nil Store.
func (o *Store) Close() {
	if o == nil {
		return
	}
	for _, p := range o.repos {
		for _, k := range p.packs {
			k.close()
		}
	}
}

func (k *pack) close() {
	if k.reader != nil {
		_ = k.reader.Close()
	}
	if k.direct != nil {
		_ = k.direct.Close()
	}
	if !k.forked {
		k.index.close()
	}
}

// list opens the indexes of the packs.
func (p *repo) list() {
	if p.listed {
		return
	}
	p.listed = true
	dir := filepath.Join(p.dir, "pack")
	names, err := disk.ReadDir(dir)
	if err != nil {
		p.err = err
		return
	}
	for _, name := range names {
		base, ok := strings.CutSuffix(name.Name(), ".pack")
		if !ok {
			continue
		}
		index, err := openPackIndex(filepath.Join(dir, base+".idx"))
		if err != nil {
			p.err = fmt.Errorf("index of %s: %w", base, err)
			return
		}
		p.packs = append(p.packs, &pack{path: filepath.Join(dir, name.Name()), index: index})
	}
}

// open returns go-git's reader of the pack and opens it if necessary.
func (k *pack) open(shared cache.Object) (*packfile.Packfile, error) {
	if k.reader == nil {
		fs := osfs.New("/")
		file, err := fs.Open(k.path)
		if err != nil {
			return nil, err
		}
		k.reader = packfile.NewPackfileWithCache(k.index, fs, file, shared, LargeObject)
	}
	return k.reader, nil
}

func (p *repo) loosePath(h ID) string {
	name := h.String()
	return filepath.Join(p.dir, name[:2], name[2:])
}

// EncodedObject returns an object of the given type, or [plumbing.ErrObjectNotFound].
func (o *Store) EncodedObject(t plumbing.ObjectType, h ID) (plumbing.EncodedObject, error) {
	for _, p := range o.repos {
		obj, err := o.get(p, h)
		switch {
		case errors.Is(err, plumbing.ErrObjectNotFound):
		case err == nil && t != plumbing.AnyObject && obj.Type() != t:
			return nil, plumbing.ErrObjectNotFound
		default:
			return obj, err
		}
	}
	return nil, plumbing.ErrObjectNotFound
}

// get searches the packs first because they hold most objects.
func (o *Store) get(p *repo, h ID) (plumbing.EncodedObject, error) {
	k, err := p.packOf(h)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return readLoose(p.loosePath(h), h)
	}
	reader, err := k.open(o.cache)
	if err != nil {
		return nil, err
	}
	return reader.Get(plumbing.Hash(h.Bytes()))
}

// packOf returns the pack that contains an object, or nil if none does.
func (p *repo) packOf(h ID) (*pack, error) {
	if p.list(); p.err != nil {
		return nil, p.err
	}
	for _, k := range p.packs {
		if ok, err := k.index.contains(h); ok || err != nil {
			return k, err
		}
	}
	return nil, nil
}

// Has reports whether an object is present.
func (o *Store) Has(h ID) (bool, error) {
	for _, p := range o.repos {
		if k, err := p.packOf(h); k != nil || err != nil {
			return err == nil, err
		}
		if _, err := os.Lstat(p.loosePath(h)); err == nil {
			return true, nil
		}
	}
	return false, nil
}

// readLoose reads a loose object. For a large object it reads only the header.
func readLoose(path string, h ID) (plumbing.EncodedObject, error) {
	reader, err := openLoose(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, plumbing.ErrObjectNotFound
	}
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	if reader.size > LargeObject {
		return &looseObject{path: path, hash: h, kind: reader.kind, size: reader.size}, nil
	}
	obj := &plumbing.MemoryObject{}
	obj.SetType(reader.kind)
	obj.SetSize(reader.size)
	if _, err := io.Copy(obj, io.LimitReader(reader, reader.size+1)); err != nil {
		return nil, fmt.Errorf("loose object %s: %w", h, err)
	}
	return obj, nil
}

// looseReader reads the content of a loose object.
type looseReader struct {
	*objfile.Reader
	file *os.File
	kind plumbing.ObjectType
	size int64
}

func openLoose(path string) (*looseReader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	reader, err := objfile.NewReader(file)
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	r := &looseReader{Reader: reader, file: file}
	if r.kind, r.size, err = reader.Header(); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

func (r *looseReader) Close() error { return errors.Join(r.Reader.Close(), r.file.Close()) }

// looseObject is a large loose object, whose content is read on demand.
type looseObject struct {
	path string
	hash ID
	kind plumbing.ObjectType
	size int64
}

// Hash implements [plumbing.EncodedObject], as do the other methods.
func (o *looseObject) Hash() plumbing.Hash             { return plumbing.Hash(o.hash.Bytes()) }
func (o *looseObject) Type() plumbing.ObjectType       { return o.kind }
func (o *looseObject) SetType(plumbing.ObjectType)     {}
func (o *looseObject) Size() int64                     { return o.size }
func (o *looseObject) SetSize(int64)                   {}
func (o *looseObject) Reader() (io.ReadCloser, error)  { return openLoose(o.path) }
func (o *looseObject) Writer() (io.WriteCloser, error) { return nil, errors.ErrUnsupported }

// read reads a commit, tag or tree and verifies its hash.
func (o *Store) read(t plumbing.ObjectType, h ID) (kind plumbing.ObjectType, content []byte, err error) {
	obj, err := o.EncodedObject(t, h)
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", t, h, err)
	}
	if obj.Size() > maxMetadata {
		return 0, nil, Hostilef("%s %s is %d bytes long", t, h, obj.Size())
	}
	reader, err := obj.Reader()
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", t, h, err)
	}
	defer reader.Close()
	content, err = io.ReadAll(reader)
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", t, h, err)
	}
	if sum := SHA1.Hash(obj.Type(), content); sum != h {
		return 0, nil, fmt.Errorf("%s %s hashes to %s", t, h, sum)
	}
	return obj.Type(), content, nil
}

// Commit reads the commit h, or the one that the tag h points to. It returns ErrNoCommit for another object.
func (o *Store) Commit(h ID) (*Commit, error) {
	for range maxTagsInChain {
		kind, content, err := o.read(plumbing.AnyObject, h)
		if err != nil {
			return nil, err
		}
		switch kind {
		case plumbing.CommitObject:
			return ParseCommit(h, content)
		case plumbing.TagObject:
			if h, err = parseTag(h, content); err != nil {
				return nil, err
			}
		default:
			return nil, ErrNoCommit
		}
	}
	return nil, ErrNoCommit
}

// ErrNoCommit means that an object is neither a commit nor a tag of one.
var ErrNoCommit = errors.New("the ref does not name a commit")

// Tree returns the entries of a tree.
func (o *Store) Tree(h ID) ([]TreeEntry, error) {
	_, content, err := o.read(plumbing.TreeObject, h)
	if err != nil {
		return nil, err
	}
	entries, err := ParseTree(h, content)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	return entries, nil
}

// CopyBlob writes a blob's content to w and verifies its hash.
func (o *Store) CopyBlob(w io.Writer, h ID) error {
	if content, ok := o.kept.get(h); ok { // hashed when it was received
		_, err := w.Write(content)
		return disk.Error("write blob "+h.String(), err)
	}
	if content, ok := o.blob(h); ok && SHA1.Hash(plumbing.BlobObject, content) == h {
		_, err := w.Write(content)
		return disk.Error("write blob "+h.String(), err)
	}
	blob, err := o.EncodedObject(plumbing.BlobObject, h)
	if err != nil {
		return Corruptf("blob %s: %w", h, err)
	}
	reader, err := blob.Reader()
	if err != nil {
		return Corruptf("blob %s: %w", h, err)
	}
	defer reader.Close()
	hasher := SHA1.NewHasher(plumbing.BlobObject, blob.Size())
	sink := &sink{w: w}
	if _, err := io.Copy(io.MultiWriter(hasher, sink), reader); err != nil {
		if sink.err != nil {
			return disk.Error("write blob "+h.String(), sink.err)
		}
		return Corruptf("read blob %s: %w", h, err)
	}
	if sum := hasher.ID(); sum != h {
		return Corruptf("blob %s hashes to %s", h, sum)
	}
	return nil
}

// ReadLink returns a symbolic link's target.
func (o *Store) ReadLink(h ID) (string, error) {
	var target bytes.Buffer
	if err := o.CopyBlob(&boundedBuffer{&target}, h); err != nil {
		return "", err
	}
	if target.Len() == 0 || bytes.IndexByte(target.Bytes(), 0) >= 0 {
		return "", Hostilef("the target of a symbolic link is empty or contains a NUL")
	}
	return target.String(), nil
}

// sink records write errors, to distinguish them from read errors.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.err = err
	return n, err
}

// MaxLinkTarget is the longest target of a symbolic link, in bytes: PATH_MAX less its NUL.
const MaxLinkTarget = 4095

type boundedBuffer struct{ *bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > MaxLinkTarget {
		return 0, Hostilef("a symbolic link's target is longer than %d bytes", MaxLinkTarget)
	}
	return b.Buffer.Write(p)
}

// TreeOf returns the tree of a commit. ok is false if the commit is missing or damaged.
func (o *Store) TreeOf(commit ID) (tree ID, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	c, err := o.Commit(commit)
	if err != nil {
		return tree, false
	}
	return c.TreeHash, true
}
