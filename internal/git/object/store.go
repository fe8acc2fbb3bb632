package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

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
// goroutine needs its own [Store.Fork]. IDs determine the object format. Third-party packages may panic on
// damaged files: callers defer [RecoverCorrupt].
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
			same.packs = append(same.packs, &pack{index: k.index, file: k.file, forked: true})
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
		if !strings.HasSuffix(name.Name(), ".pack") {
			continue
		}
		k, err := openPack(filepath.Join(dir, name.Name()))
		if err != nil {
			return err
		}
		p.packs = append(p.packs, k)
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
	k, i, err := p.packOf(h)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return readLoose(p.loosePath(h))
	}
	offset, err := k.index.offset(i)
	if err != nil {
		return nil, err
	}
	if o.packs == nil {
		o.packs = newPackReader()
	}
	return o.packs.get(k, offset)
}

// packOf returns the pack that contains an object, and its position in the index, or nil if none does.
func (p *repo) packOf(h ID) (k *pack, i int64, err error) {
	if p.list(); p.err != nil {
		return nil, 0, p.err
	}
	for _, k := range p.packs {
		if i, err := k.index.find(h); i >= 0 || err != nil {
			return k, i, err
		}
	}
	return nil, 0, nil
}

// Has reports whether an object is present.
func (o *Store) Has(h ID) (bool, error) {
	for n := range o.repos {
		i := o.index(n)
		p := o.repos[i]
		if k, _, err := p.packOf(h); k != nil || err != nil {
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

// read reads a commit, tag or tree and verifies its hash.
func (o *Store) read(h ID) (*Object, error) {
	obj, err := o.Object(h)
	switch {
	case err != nil:
		return nil, fmt.Errorf("object %s: %w", h, err)
	case obj.Size > maxMetadata && obj.Kind != plumbing.BlobObject:
		return nil, Hostilef("%s %s is %d bytes long", obj.Kind, h, obj.Size)
	case obj.open != nil && obj.Kind == plumbing.BlobObject:
		return obj, nil // of no use
	case obj.open != nil:
		var whole bytes.Buffer
		err = obj.copy(&whole, h)
		return &Object{Kind: obj.Kind, Size: obj.Size, content: whole.Bytes()}, err
	}
	if sum := h.Format().Hash(obj.Kind, obj.content); sum != h {
		return nil, fmt.Errorf("%s %s hashes to %s", obj.Kind, h, sum)
	}
	return obj, nil
}
