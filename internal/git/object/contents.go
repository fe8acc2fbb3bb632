package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/disk"
)

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
			if h, err = TagTarget(h, obj.content); err != nil {
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
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", h, err)
	}
	if obj.Kind != plumbing.TreeObject {
		return nil, fmt.Errorf("tree %s: %w", h, ErrNotFound)
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
	blob, err := o.openBlob(h)
	if err != nil {
		return err
	}
	return blob.copy(w, h)
}

func (o *Store) openBlob(h ID) (*Object, error) {
	blob, err := o.Object(h)
	if err != nil {
		return nil, Corruptf("blob %s: %w", h, err)
	}
	if blob.Kind != plumbing.BlobObject {
		return nil, Corruptf("blob %s: %w", h, ErrNotFound)
	}
	return blob, nil
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
	if _, err := io.Copy(io.MultiWriter(hasher, sink), io.LimitReader(reader, o.Size+1)); err != nil {
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
	target, ok, err := o.SmallBlob(h, maxLinkTarget)
	switch {
	case err != nil:
		return "", err
	case !ok:
		return "", Hostilef("a symbolic link's target is longer than %d bytes", maxLinkTarget)
	case len(target) == 0 || bytes.IndexByte(target, 0) >= 0:
		return "", Hostilef("the target of a symbolic link is empty or contains a NUL")
	}
	return string(target), nil
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

// maxLinkTarget is the longest target of a symbolic link, in bytes: PATH_MAX less its NUL.
const maxLinkTarget = 4095

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

// SmallBlob returns the content of a blob of at most limit bytes, valid until the next call; ok is false if
// it is larger. It verifies the hash.
func (o *Store) SmallBlob(h ID, limit int64) (content []byte, ok bool, err error) {
	defer RecoverCorrupt(&err)
	if content, ok := o.kept.get(h); ok {
		return content, int64(len(content)) <= limit, nil
	}
	if content, ok := o.blob(h); ok &&
		(int64(len(content)) > limit || h.Format().Hash(plumbing.BlobObject, content) == h) {
		return content, int64(len(content)) <= limit, nil
	}
	blob, err := o.openBlob(h)
	if err != nil {
		return nil, false, err
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

// Commit is a decoded commit.
type Commit struct {
	Hash         ID
	TreeHash     ID
	ParentHashes []ID
}

// TreeEntry is an entry of a tree.
type TreeEntry struct {
	Name string
	Mode filemode.FileMode
	Hash ID
}

var (
	errBadCommit = errors.New("malformed commit")
	errBadTag    = errors.New("malformed tag")
	errBadTree   = errors.New("malformed tree")
)

// ParseCommit decodes the content of the commit h: its tree, and the parents that follow it.
func ParseCommit(h ID, content []byte) (*Commit, error) {
	tree, rest, ok := cutID(content, "tree ", h)
	if !ok {
		return nil, fmt.Errorf("%w: no tree", errBadCommit)
	}
	c := &Commit{Hash: h, TreeHash: tree}
	for bytes.HasPrefix(rest, []byte("parent ")) {
		var parent ID
		if parent, rest, ok = cutID(rest, "parent ", h); !ok {
			return nil, fmt.Errorf("%w: invalid parent", errBadCommit)
		}
		c.ParentHashes = append(c.ParentHashes, parent)
	}
	return c, nil
}

// TagTarget returns the ID of the object that the tag h names.
func TagTarget(h ID, content []byte) (ID, error) {
	target, _, ok := cutID(content, "object ", h)
	if !ok {
		return ZeroID, fmt.Errorf("%w: no object", errBadTag)
	}
	return target, nil
}

// cutID cuts a line with a prefix and an ID of the same format as the object h.
func cutID(content []byte, prefix string, h ID) (id ID, rest []byte, ok bool) {
	line, rest, _ := bytes.Cut(content, []byte("\n"))
	text, ok := bytes.CutPrefix(line, []byte(prefix))
	if !ok || len(text) != 2*len(h.Bytes()) || !IsID(string(text)) {
		return ZeroID, nil, false
	}
	return ParseID(string(text)), rest, true
}

// ParseTree decodes the content of the tree h.
func ParseTree(h ID, content []byte) (entries []TreeEntry, err error) {
	size := len(h.Bytes())
	for len(content) > 0 {
		mode, rest, ok := bytes.Cut(content, []byte(" "))
		if !ok {
			return nil, fmt.Errorf("%w: no mode", errBadTree)
		}
		name, rest, ok := bytes.Cut(rest, []byte{0})
		if !ok || len(name) == 0 || len(rest) < size {
			return nil, fmt.Errorf("%w: truncated or without a name", errBadTree)
		}
		number, err := strconv.ParseUint(string(mode), 8, 32)
		if err != nil {
			return nil, fmt.Errorf("%w: invalid mode", errBadTree)
		}
		entries = append(entries, TreeEntry{string(name), canonicalMode(filemode.FileMode(number)), IDOf(rest[:size])})
		content = rest[size:]
	}
	return entries, nil
}

// canonicalMode returns the mode for a checkout, as Git does. The only file permission that matters is the
// owner's execute bit, and a mode that is none of Git's is that of a submodule.
func canonicalMode(mode filemode.FileMode) filemode.FileMode {
	switch mode & 0o170000 {
	case filemode.Dir, filemode.Symlink:
		return mode & 0o170000
	case 0o100000:
		if mode&0o100 != 0 {
			return filemode.Executable
		}
		return filemode.Regular
	}
	return filemode.Submodule
}
