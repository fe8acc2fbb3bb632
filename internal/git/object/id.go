package object

import (
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// ID is the id of a Git object: the hash of its type, size and content.
type ID = plumbing.Hash

// ZeroID is the id of no object.
var ZeroID = plumbing.ZeroHash

// ParseID returns the id that text is in hexadecimal; ZeroID if [IsID] refuses it.
func ParseID(text string) ID { return plumbing.NewHash(text) }

// IsID reports whether text is an id in hexadecimal.
func IsID(text string) bool { return plumbing.IsHash(text) }

// Commit is a decoded commit.
type Commit = object.Commit

// Tree is a decoded tree.
type Tree = object.Tree

// TreeEntry is an entry of a tree.
type TreeEntry = object.TreeEntry
