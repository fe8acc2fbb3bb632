package object

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

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

// parseTag returns the target of the tag h.
func parseTag(h ID, content []byte) (ID, error) {
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
