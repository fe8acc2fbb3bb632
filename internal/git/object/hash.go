package object

import (
	"crypto"
	"crypto/sha1"
	"crypto/sha256"
	"hash"
	"strconv"

	"github.com/go-git/go-git/v5/plumbing"
	githash "github.com/go-git/go-git/v5/plumbing/hash"
)

// Format is the object format of a repository: the hash function of its object IDs, packs, indexes and other files.
type Format uint8

// The object formats.
const (
	SHA1   Format = iota // the default
	SHA256               // Git's extension objectFormat
)

// String returns the name of the format in Git's protocol and configuration.
func (f Format) String() string {
	if f == SHA256 {
		return "sha256"
	}
	return "sha1"
}

// Size returns the length of an ID, and of any other hash of the format, in bytes.
func (f Format) Size() int {
	if f == SHA256 {
		return sha256.Size
	}
	return sha1.Size
}

// Format returns the format of an ID. That of the zero ID is SHA1.
func (id ID) Format() Format {
	if id.size == sha256.Size {
		return SHA256
	}
	return SHA1
}

// NewSum returns the hash function for checksums of files. It detects accidents only: see [Format.NewHasher].
func (f Format) NewSum() hash.Hash {
	if f == SHA256 {
		return sha256.New()
	}
	return sha1.New()
}

// Hasher computes the ID of an object from its content.
type Hasher struct{ hash hash.Hash }

// NewHasher returns a Hasher for an object of a type and size. For SHA-1 it detects collision attacks, as Git does.
func (f Format) NewHasher(kind plumbing.ObjectType, size int64) Hasher {
	h := Hasher{}
	if f == SHA256 {
		h.hash = sha256.New()
	} else {
		h.hash = githash.New(crypto.SHA1)
	}
	var header [32]byte
	b := append(header[:0], kind.Bytes()...)
	b = strconv.AppendInt(append(b, ' '), size, 10)
	_, _ = h.hash.Write(append(b, 0))
	return h
}

// Write adds content. It never fails.
func (h Hasher) Write(content []byte) (int, error) { return h.hash.Write(content) }

// ID returns the ID for the content so far.
func (h Hasher) ID() ID {
	var sum [sha256.Size]byte
	return IDOf(h.hash.Sum(sum[:0]))
}

// Hash returns the ID of an object.
func (f Format) Hash(kind plumbing.ObjectType, content []byte) ID {
	h := f.NewHasher(kind, int64(len(content)))
	_, _ = h.Write(content)
	return h.ID()
}
