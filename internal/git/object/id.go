package object

import (
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// ID is an object ID: the hash of the type, size and content of an object.
type ID = plumbing.Hash

// ZeroID is the zero ID, which names no object.
var ZeroID = plumbing.ZeroHash

// ParseID parses a hexadecimal object ID. It returns ZeroID if text is invalid according to [IsID].
func ParseID(text string) ID { return plumbing.NewHash(text) }

// IsID reports whether text is a hexadecimal object ID.
func IsID(text string) bool { return plumbing.IsHash(text) }

// Commit is a decoded commit.
type Commit = object.Commit

// Tree is a decoded tree.
type Tree = object.Tree

// TreeEntry is an entry of a tree.
type TreeEntry = object.TreeEntry
