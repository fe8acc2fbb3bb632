package object

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sort"

	"github.com/go-git/go-git/v5/plumbing"
)

// Place is where a store has an object: a pack, and the object's position in its index. Loose objects have
// the pack Loose.
type Place struct {
	Pack int32
	At   uint32
}

// Loose is the [Place].Pack of a loose object.
const Loose = -1

// Stored reads the objects of a Store as they are stored, to send them. An object that is stored more than
// once always has the same place. Like its Store, it is not safe for concurrent use.
type Stored struct {
	store  *Store
	packs  []*pack
	orders [][]uint32 // positions by offset, for each pack; nil until needed
}

// Stored returns a reader of the packs and loose objects of o. It does not see packs that are added later.
func (o *Store) Stored() (*Stored, error) {
	s := &Stored{store: o}
	for _, p := range o.repos {
		if p.list(); p.err != nil {
			return nil, p.err
		}
		s.packs = append(s.packs, p.packs...)
	}
	s.orders = make([][]uint32, len(s.packs))
	return s, nil
}

// Packs returns the number of packs.
func (s *Stored) Packs() int { return len(s.packs) }

// Count returns the number of objects in a pack.
func (s *Stored) Count(pack int) int { return int(s.packs[pack].index.count) }

// Locate returns the place of an object, or ErrNotFound.
func (s *Stored) Locate(h ID) (Place, error) {
	for i, k := range s.packs {
		at, err := k.index.find(h)
		if err != nil {
			return Place{}, err
		}
		if at >= 0 {
			return Place{int32(i), uint32(at)}, nil
		}
	}
	for _, p := range s.store.repos {
		if _, err := os.Lstat(p.loosePath(h)); err == nil {
			return Place{Pack: Loose}, nil
		}
	}
	return Place{}, ErrNotFound
}

// ID returns the ID of a packed object.
func (s *Stored) ID(at Place) (ID, error) { return s.packs[at.Pack].index.id(int64(at.At)) }

// InOrder returns the positions of the objects of a pack in the order of their offsets. The caller must not change it.
func (s *Stored) InOrder(pack int) ([]uint32, error) {
	if s.orders[pack] != nil {
		return s.orders[pack], nil
	}
	order, err := s.packs[pack].index.inOrder()
	if err != nil {
		return nil, err
	}
	s.orders[pack] = order
	return order, nil
}

// Entry is an object as a pack has it.
type Entry struct {
	Kind   plumbing.ObjectType // that of a delta for a delta
	Size   int64               // of the inflated data
	Offset int64               // in the pack
	Base   Place               // of a delta
	Data   *io.SectionReader   // compressed
}

// Entry returns a packed object. Its data is valid until the store is closed.
func (s *Stored) Entry(at Place) (Entry, error) {
	k := s.packs[at.Pack]
	offset, err := k.index.offset(int64(at.At))
	if err != nil {
		return Entry{}, err
	}
	end, err := s.end(at.Pack, offset)
	if err != nil {
		return Entry{}, err
	}
	header, data, err := headerIn(k.file, offset, end, k.index.format)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Kind: header.kind, Size: header.size, Offset: offset}
	e.Data = io.NewSectionReader(k.file, data, end-data)
	if !header.kind.IsDelta() {
		return e, nil
	}
	base, err := baseOffset(k, offset, header)
	if err != nil {
		return Entry{}, err
	}
	e.Base, err = s.placeAt(at.Pack, base)
	return e, err
}

// Body returns the bytes of all objects of a pack: what is between its header and its checksum. Their offsets
// begin at 12.
func (s *Stored) Body(pack int) (*io.SectionReader, error) {
	k := s.packs[pack]
	info, err := k.file.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size() - packHeader - k.index.hashSize
	if size < 0 {
		return nil, errTooShort
	}
	return io.NewSectionReader(k.file, packHeader, size), nil
}

// end returns where the object at an offset ends.
func (s *Stored) end(pack int32, offset int64) (int64, error) {
	i, err := s.rank(pack, offset+1)
	if err != nil {
		return 0, err
	}
	if order := s.orders[pack]; i < len(order) {
		return s.packs[pack].index.offset(int64(order[i]))
	}
	body, err := s.Body(int(pack))
	if err != nil {
		return 0, err
	}
	return packHeader + body.Size(), nil
}

// placeAt returns the place of the object at an offset.
func (s *Stored) placeAt(pack int32, offset int64) (Place, error) {
	i, err := s.rank(pack, offset)
	if err != nil {
		return Place{}, err
	}
	order := s.orders[pack]
	if i < len(order) {
		if found, err := s.packs[pack].index.offset(int64(order[i])); err != nil || found == offset {
			return Place{pack, order[i]}, err
		}
	}
	return Place{}, errBadIndex
}

// rank returns how many objects of a pack begin before an offset.
func (s *Stored) rank(pack int32, offset int64) (int, error) {
	order, err := s.InOrder(int(pack))
	if err != nil {
		return 0, err
	}
	x := s.packs[pack].index
	i := sort.Search(len(order), func(i int) bool {
		at, failed := x.offset(int64(order[i]))
		err = errors.Join(err, failed)
		return at >= offset
	})
	return i, err
}

// AppendEntry appends the header of an object in a pack: that of an object in full, of a delta on the object
// distance bytes before, or, if distance is 0, of a delta on base.
func AppendEntry(b []byte, kind plumbing.ObjectType, size, distance int64, base ID) []byte {
	b = appendObjectHeader(b, kind, size)
	switch kind {
	case plumbing.OFSDeltaObject:
		return appendDistance(b, distance)
	case plumbing.REFDeltaObject:
		return append(b, base.Bytes()...)
	}
	return b
}

// CommitHeader is what a walk through history needs of a commit.
type CommitHeader struct {
	Tree    ID
	Parents []ID  // each once
	Date    int64 // of the committer, in Unix time
}

// CommitHeader reads a commit, whose hash it verifies. It returns ErrNotFound or ErrNoCommit.
func (o *Store) CommitHeader(h ID) (c CommitHeader, err error) {
	defer RecoverCorrupt(&err)
	kind, content, err := o.Raw(h)
	if err != nil {
		return c, err
	}
	if kind != plumbing.CommitObject.String() {
		return c, ErrNoCommit
	}
	commit, err := ParseCommit(h, content)
	if err != nil {
		return c, err
	}
	return CommitHeader{commit.TreeHash, distinct(commit.ParentHashes), dateOf(content)}, nil
}

// distinct returns ids without repetitions.
func distinct(ids []ID) []ID {
	if len(ids) < 2 {
		return ids
	}
	seen, unique := make(map[ID]bool, len(ids)), ids[:0]
	for _, id := range ids {
		if !seen[id] {
			seen[id] = true
			unique = append(unique, id)
		}
	}
	return unique
}

// Content returns the type and content of an object of at most limit bytes, whose hash it verifies; ok is false if it
// is larger.
func (o *Store) Content(h ID, limit int64) (kind plumbing.ObjectType, content []byte, ok bool, err error) {
	defer RecoverCorrupt(&err)
	obj, err := o.Object(h)
	if err != nil || obj.Size > limit {
		return 0, nil, false, err
	}
	var whole bytes.Buffer
	err = obj.copy(&whole, h)
	return obj.Kind, whole.Bytes(), err == nil, err
}
