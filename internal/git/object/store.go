package object

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/internal/disk"
)

// Memory limits.
const (
	CacheSize      = 8 << 20  // bytes of bases that are kept
	LargeObject    = 1 << 20  // bytes; larger objects are streamed
	maxMetadata    = 64 << 20 // bytes in a commit, tag or tree
	maxTagsInChain = 16
)

// Store reads Git objects from one or more bare repositories. It is not safe for concurrent use: each
// goroutine needs its own [Store.Fork]. IDs say of which object format an object is. Packages of others may panic on damaged
// files: callers defer [RecoverCorrupt].
type Store struct {
	repos  []*repo
	recent int         // the repository that had the last object: that of the next one in the same folder
	packs  *packReader // nil until needed
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

// Open returns a Store that reads the given bare repositories.
func Open(gitDirs ...string) *Store {
	o := &Store{}
	for _, dir := range gitDirs {
		o.repos = append(o.repos, &repo{dir: filepath.Join(dir, "objects")})
	}
	return o
}

// Add adds bare repositories, unless o reads them already. Stores that were forked before do not read them.
func (o *Store) Add(gitDirs ...string) {
	known := map[string]bool{}
	for _, p := range o.repos {
		known[p.dir] = true
	}
	for _, gitDir := range gitDirs {
		if dir := filepath.Join(gitDir, "objects"); !known[dir] {
			known[dir] = true
			o.repos = append(o.repos, &repo{dir: dir})
		}
	}
}

// index returns which repository to read in the nth place: the recent one first.
func (o *Store) index(n int) int { return (o.recent + n) % len(o.repos) }

// Keep lets o return the blobs of kept without reading them.
func (o *Store) Keep(kept *Kept) { o.kept = kept }

// Fork returns a Store of the same repositories for another goroutine, which must be closed before o.
func (o *Store) Fork() *Store {
	fork := &Store{kept: o.kept}
	for _, p := range o.repos {
		p.list()
		same := &repo{dir: p.dir, listed: true, err: p.err}
		for _, k := range p.packs {
			same.packs = append(same.packs, &pack{path: k.path, index: k.index, file: k.file, forked: true})
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

// maxListings is how often the packs are listed if one is replaced meanwhile.
const maxListings = 5

// list opens the packs and their indexes. Files that are deleted afterwards can still be read.
func (p *repo) list() {
	if p.listed {
		return
	}
	p.listed = true
	for range maxListings {
		if p.err = p.openPacks(); !errors.Is(p.err, os.ErrNotExist) {
			return
		}
		for _, k := range p.packs {
			k.close()
		}
		p.packs = nil
	}
}

func (p *repo) openPacks() error {
	dir := filepath.Join(p.dir, "pack")
	names, err := disk.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		base, ok := strings.CutSuffix(name.Name(), ".pack")
		if !ok {
			continue
		}
		index, err := openPackIndex(filepath.Join(dir, base+".idx"))
		if err != nil {
			return fmt.Errorf("index of %s: %w", base, err)
		}
		k := &pack{path: filepath.Join(dir, name.Name()), index: index}
		p.packs = append(p.packs, k)
		if err := k.open(); err != nil {
			return err
		}
	}
	return nil
}

func (p *repo) loosePath(h ID) string {
	name := h.String()
	return filepath.Join(p.dir, name[:2], name[2:])
}

// ErrNotFound means that a store does not have an object.
var ErrNotFound = errors.New("object not found")

// Object is an object of a store, whose hash is not verified.
type Object struct {
	Kind plumbing.ObjectType
	Size int64

	content []byte
	open    func() (io.ReadCloser, error) // of a large object, whose content is read on demand
}

// Reader returns the content, which is valid until the store is closed.
func (o *Object) Reader() (io.ReadCloser, error) {
	if o.open != nil {
		return o.open()
	}
	return io.NopCloser(bytes.NewReader(o.content)), nil
}

// Object returns an object, or ErrNotFound.
func (o *Store) Object(h ID) (*Object, error) {
	for n := range o.repos {
		i := o.index(n)
		if obj, err := o.get(o.repos[i], h); !errors.Is(err, ErrNotFound) {
			o.recent = i
			return obj, err
		}
	}
	return nil, ErrNotFound
}

// get searches the packs first because they hold most objects.
func (o *Store) get(p *repo, h ID) (*Object, error) {
	k, err := p.packOf(h)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return readLoose(p.loosePath(h))
	}
	offset, err := k.index.findOffset(h)
	if err != nil {
		return nil, err
	}
	if o.packs == nil {
		o.packs = newPackReader()
	}
	return o.packs.get(k, offset)
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
	for n := range o.repos {
		i := o.index(n)
		p := o.repos[i]
		if k, err := p.packOf(h); k != nil || err != nil {
			o.recent = i
			return err == nil, err
		}
		if _, err := os.Lstat(p.loosePath(h)); err == nil {
			o.recent = i
			return true, nil
		}
	}
	return false, nil
}

// readLoose reads a loose object. For a large object it reads only the header.
func readLoose(path string) (*Object, error) {
	reader, err := openLoose(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	obj := &Object{Kind: reader.kind, Size: reader.size}
	if obj.Size > LargeObject {
		obj.open = func() (io.ReadCloser, error) { return openLoose(path) }
		return obj, nil
	}
	content := bytes.NewBuffer(make([]byte, 0, obj.Size+bytes.MinRead))
	if _, err := content.ReadFrom(io.LimitReader(reader, obj.Size+1)); err != nil {
		return nil, fmt.Errorf("loose object: %w", err)
	}
	obj.content = content.Bytes()
	return obj, nil
}

// looseReader reads the content of a loose object.
type looseReader struct {
	io.Reader
	file     *os.File
	inflated io.ReadCloser
	kind     plumbing.ObjectType
	size     int64
}

var inflaters sync.Pool // of zlib.Resetter

func openLoose(path string) (*looseReader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &looseReader{file: file}
	if err := r.readHeader(); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("loose object: %w", noEOF(err))
	}
	return r, nil
}

// maxLooseHeader is the maximum length of the type and size of a loose object, in bytes.
const maxLooseHeader = 32

func (r *looseReader) readHeader() error {
	packed := bufio.NewReader(r.file)
	var err error
	if pooled, ok := inflaters.Get().(io.ReadCloser); ok {
		err = pooled.(zlib.Resetter).Reset(packed, nil)
		r.inflated = pooled
	} else {
		r.inflated, err = zlib.NewReader(packed)
	}
	if err != nil {
		return err
	}
	in := bufio.NewReader(r.inflated)
	header := make([]byte, 0, maxLooseHeader)
	for {
		b, err := in.ReadByte()
		if err != nil {
			return err
		}
		if b == 0 {
			break
		}
		if header = append(header, b); len(header) == maxLooseHeader {
			return errLoose
		}
	}
	kind, size, _ := strings.Cut(string(header), " ")
	if r.kind, err = plumbing.ParseObjectType(kind); err != nil || r.kind.IsDelta() {
		return errLoose
	}
	if r.size, err = strconv.ParseInt(size, 10, 64); err != nil || r.size < 0 {
		return errLoose
	}
	r.Reader = in
	return nil
}

var errLoose = errors.New("not a type and a size")

func (r *looseReader) Close() error {
	inflaters.Put(r.inflated)
	return r.file.Close()
}

// read reads a commit, tag or tree and verifies its hash.
func (o *Store) read(h ID) (*Object, error) {
	obj, err := o.Object(h)
	switch {
	case err != nil:
		return nil, fmt.Errorf("object %s: %w", h, err)
	case obj.Size > maxMetadata && obj.Kind != plumbing.BlobObject:
		return nil, Hostilef("%s %s is %d bytes long", obj.Kind, h, obj.Size)
	case obj.open == nil:
	case obj.Kind == plumbing.BlobObject:
		return obj, nil // of no use
	default:
		if err := obj.load(); err != nil {
			return nil, fmt.Errorf("%s %s: %w", obj.Kind, h, err)
		}
	}
	if sum := h.Format().Hash(obj.Kind, obj.content); sum != h {
		return nil, fmt.Errorf("%s %s hashes to %s", obj.Kind, h, sum)
	}
	return obj, nil
}

// load reads the content of a large object into memory.
func (o *Object) load() error {
	reader, err := o.open()
	if err != nil {
		return err
	}
	defer reader.Close()
	if o.content, err = io.ReadAll(io.LimitReader(reader, o.Size+1)); err == nil {
		o.open = nil
	}
	return err
}

// Commit reads the commit h, or the one that the tag h points to. It returns ErrNoCommit for another object.
func (o *Store) Commit(h ID) (*Commit, error) {
	for range maxTagsInChain {
		obj, err := o.read(h)
		if err != nil {
			return nil, err
		}
		switch obj.Kind {
		case plumbing.CommitObject:
			return ParseCommit(h, obj.content)
		case plumbing.TagObject:
			if h, err = parseTag(h, obj.content); err != nil {
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
	obj, err := o.read(h)
	if err == nil && obj.Kind != plumbing.TreeObject {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	entries, err := ParseTree(h, obj.content)
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
	if content, ok := o.blob(h); ok && h.Format().Hash(plumbing.BlobObject, content) == h {
		_, err := w.Write(content)
		return disk.Error("write blob "+h.String(), err)
	}
	blob, err := o.Object(h)
	if err == nil && blob.Kind != plumbing.BlobObject {
		err = ErrNotFound
	}
	if err != nil {
		return Corruptf("blob %s: %w", h, err)
	}
	return blob.copy(w, h)
}

// copy writes the content of the object h to w and verifies its hash.
func (o *Object) copy(w io.Writer, h ID) error {
	reader, err := o.Reader()
	if err != nil {
		return Corruptf("%s %s: %w", o.Kind, h, err)
	}
	defer reader.Close()
	hasher := h.Format().NewHasher(o.Kind, o.Size)
	sink := &sink{w: w}
	if _, err := io.Copy(io.MultiWriter(hasher, sink), reader); err != nil {
		if sink.err != nil {
			return disk.Error(fmt.Sprintf("write %s %s", o.Kind, h), sink.err)
		}
		return Corruptf("read %s %s: %w", o.Kind, h, err)
	}
	if sum := hasher.ID(); sum != h {
		return Corruptf("%s %s hashes to %s", o.Kind, h, sum)
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

// SmallBlob returns the content of a blob of at most limit bytes, valid until the next call; ok is false if it is larger. It
// verifies the hash.
func (o *Store) SmallBlob(h ID, limit int64) (content []byte, ok bool, err error) {
	defer RecoverCorrupt(&err)
	if content, ok := o.kept.get(h); ok {
		return content, int64(len(content)) <= limit, nil
	}
	if content, ok := o.blob(h); ok && (int64(len(content)) > limit || h.Format().Hash(plumbing.BlobObject, content) == h) {
		return content, int64(len(content)) <= limit, nil
	}
	blob, err := o.Object(h)
	if err == nil && blob.Kind != plumbing.BlobObject {
		err = ErrNotFound
	}
	if err != nil {
		return nil, false, Corruptf("blob %s: %w", h, err)
	}
	if blob.Size > limit {
		return nil, false, nil
	}
	var whole bytes.Buffer
	if err := blob.copy(&whole, h); err != nil {
		return nil, false, err
	}
	return whole.Bytes(), true, nil
}
