package gitrepo

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// quarantine is a bare repository of one fetch, whose objects nobody else sees until [quarantine.release].
type quarantine struct{ dir string }

// openQuarantine makes an empty quarantine at dir, in the place of one that may be there.
func openQuarantine(dir string) (quarantine, error) {
	if err := os.RemoveAll(dir); err != nil {
		return quarantine{}, volumeError("clear the quarantine", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "objects", "pack"), 0o755); err != nil {
		return quarantine{}, volumeError("make the quarantine", err)
	}
	return quarantine{dir}, nil
}

// index takes in a whole pack as it is, and writes the index that makes it readable.
func (q quarantine) index(ctx context.Context) (err error) {
	defer recoverCorrupt(&err)
	file, err := q.openPack(ctx)
	if err != nil {
		return err
	}
	defer file.Close()
	writer := new(idxfile.Writer)
	parser, err := packfile.NewParser(packfile.NewScanner(file), writer)
	if err != nil {
		return corrupt("read the fetched pack: %w", err)
	}
	sum, err := parser.Parse()
	if err != nil {
		return corrupt("read the fetched pack: %w", err)
	}
	if !file.endsIn(sum) {
		return corrupt("read the fetched pack: there is more than the pack")
	}
	index, err := writer.Index()
	if err != nil {
		return corrupt("index the fetched pack: %w", err)
	}
	base := filepath.Join(q.dir, "objects", "pack", "pack-"+sum.String())
	if err := writeIndex(base+".idx", index); err != nil {
		return volumeError("index the fetched pack", err)
	}
	return volumeError("take in the fetched pack", os.Rename(file.Name(), base+".pack"))
}

// minPacked is the fewest bytes that an object takes in a pack: a byte of header, and what zlib
// makes of nothing.
const minPacked = 9

// openPack opens the pack as it came, having checked that it is long enough for the number of
// objects it claims. go-git makes room for all of them at once: twelve bytes could claim 2^32.
func (q quarantine) openPack(ctx context.Context) (*packReader, error) {
	file, err := os.Open(fetchedPack(q.dir))
	if err != nil {
		return nil, volumeError("open the fetched pack", err)
	}
	var header struct{ Magic, Version, Count uint32 }
	info, err := file.Stat()
	if err == nil {
		err = binary.Read(io.NewSectionReader(file, 0, info.Size()), binary.BigEndian, &header)
	}
	if err != nil {
		_ = file.Close()
		return nil, corrupt("read the fetched pack's header: %w", err)
	}
	if int64(header.Count) > info.Size()/minPacked {
		_ = file.Close()
		return nil, corrupt("the fetched pack claims %d objects in %d bytes", header.Count, info.Size())
	}
	return &packReader{file, ctx, info.Size()}, nil
}

// packReader reads a pack until its context is done.
type packReader struct {
	*os.File
	ctx  context.Context // of the sync that fetched it
	size int64
}

func (p *packReader) Read(b []byte) (int, error) {
	if p.ctx.Err() != nil {
		return 0, context.Cause(p.ctx)
	}
	return p.File.Read(b)
}

// endsIn reports whether the pack ends in sum. go-git does not mind what follows a pack; Git takes the
// whole store for broken.
func (p *packReader) endsIn(sum plumbing.Hash) bool {
	var end plumbing.Hash
	_, err := p.ReadAt(end[:], p.size-int64(len(end)))
	return err == nil && end == sum
}

func writeIndex(path string, index *idxfile.MemoryIndex) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered := bufio.NewWriter(file)
	if _, err := idxfile.NewEncoder(buffered).Encode(index); err != nil {
		return err
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	return file.Close()
}

// unpack takes in a thin pack: every object becomes a file of its own, completed by what is read
// from the store.
func (q quarantine) unpack(ctx context.Context, s store) (err error) {
	defer recoverCorrupt(&err)
	file, err := q.openPack(ctx)
	if err != nil {
		return err
	}
	defer file.Close()
	bases := openObjects(q.dir, s.dir)
	defer bases.Close()
	into := &thinTarget{
		EncodedObjectStorer: filesystem.NewStorage(osfs.New(q.dir), cache.NewObjectLRU(cacheSize)),
		bases:               bases,
	}
	parser, err := packfile.NewParserWithStorage(packfile.NewScanner(file), into)
	if err != nil {
		return corrupt("read the fetched pack: %w", err)
	}
	if _, err := parser.Parse(); err != nil && !errors.Is(err, packfile.ErrEmptyPackfile) {
		if into.err != nil {
			return volumeError("write a fetched object", into.err)
		}
		return corrupt("apply the fetched pack: %w", err)
	}
	return volumeError("drop the fetched pack", os.Remove(file.Name()))
}

// thinTarget writes to one repository and reads from several. It hides go-git's lazy writer, which
// holds every object's file open until the whole pack is read.
type thinTarget struct {
	storer.EncodedObjectStorer
	bases *objects
	err   error // of the first failed write
}

func (t *thinTarget) EncodedObject(kind plumbing.ObjectType, h plumbing.Hash) (plumbing.EncodedObject, error) {
	return t.bases.EncodedObject(kind, h)
}

func (t *thinTarget) SetEncodedObject(obj plumbing.EncodedObject) (plumbing.Hash, error) {
	h, err := t.EncodedObjectStorer.SetEncodedObject(obj)
	if err != nil && t.err == nil {
		t.err = err
	}
	return h, err
}

func recoverCorrupt(err *error) {
	if cause := recover(); cause != nil {
		*err = corrupt("read the fetched pack: panic: %v", cause)
	}
}

// release moves the quarantine's objects into the store. They are named by their content, so it does
// not matter whether they are there already, nor who else is moving the same.
func (q quarantine) release(s store) error {
	attempt := "move fetched objects into the store"
	if err := syncVolume(q.dir); err != nil {
		return volumeError(attempt, err)
	}
	var packs []string
	from, to := filepath.Join(q.dir, "objects"), filepath.Join(s.dir, "objects")
	groups, err := os.ReadDir(from)
	if err != nil {
		return volumeError(attempt, err)
	}
	for _, group := range groups {
		names, err := os.ReadDir(filepath.Join(from, group.Name()))
		if err != nil {
			return volumeError(attempt, err)
		}
		if err := os.MkdirAll(filepath.Join(to, group.Name()), 0o755); err != nil {
			return volumeError(attempt, err)
		}
		for _, name := range names {
			path := filepath.Join(group.Name(), name.Name())
			switch {
			case strings.HasSuffix(path, ".pack"):
				packs = append(packs, path)
				continue
			case strings.HasPrefix(name.Name(), "tmp_"):
				continue
			}
			if err := os.Rename(filepath.Join(from, path), filepath.Join(to, path)); err != nil {
				return volumeError(attempt, err)
			}
		}
	}
	// A pack comes after its index: go-git takes a store for broken that has a pack without one,
	// while both it and Git overlook an index without its pack.
	for _, path := range packs {
		if err := os.Rename(filepath.Join(from, path), filepath.Join(to, path)); err != nil {
			return volumeError(attempt, err)
		}
	}
	return nil // a cut of power that undoes a move is healed by fetching again
}
