package object

import (
	"bytes"
	"crypto"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	githash "github.com/go-git/go-git/v5/plumbing/hash"

	"lockstep/internal/git"
)

// ID is an object ID: the hash of the type, size and content of an object. It has 20 bytes in a SHA-1
// repository and 32 in a SHA-256 repository. The zero ID names no object. IDs are comparable with ==; those
// of different formats differ.
type ID struct {
	sum  [sha256.Size]byte
	size uint8 // bytes of the ID; 0 for the zero ID
}

// ZeroID is the zero ID.
var ZeroID ID

// zeroText is the text of the zero ID.
var zeroText = strings.Repeat("0", 2*sha1.Size)

// ParseID parses a hexadecimal object ID of 40 or 64 digits. It returns ZeroID if text is invalid according
// to [IsID], or is all zeros.
func ParseID(text string) (id ID) {
	switch len(text) {
	case 2 * sha1.Size, 2 * sha256.Size:
		var raw [sha256.Size]byte
		n, err := hex.Decode(raw[:], []byte(text))
		if err != nil {
			return ZeroID
		}
		return IDOf(raw[:n])
	}
	return ZeroID
}

// IsID reports whether text is a hexadecimal object ID of 40 or 64 digits.
func IsID(text string) bool {
	return (len(text) == 2*sha1.Size || len(text) == 2*sha256.Size) && strings.Trim(text, "0123456789abcdefABCDEF") == ""
}

// IDOf returns the ID with the given 20 or 32 bytes: ZeroID if they are zeros. It panics if raw has another length.
func IDOf(raw []byte) (id ID) {
	if len(raw) != sha1.Size && len(raw) != sha256.Size {
		panic(fmt.Sprintf("object ID of %d bytes", len(raw)))
	}
	copy(id.sum[:], raw)
	if id.sum == ZeroID.sum {
		return ZeroID
	}
	id.size = uint8(len(raw))
	return id
}

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id.size == 0 }

// Bytes returns the 20 or 32 bytes of an ID; none of the zero ID.
func (id ID) Bytes() []byte { return id.sum[:id.size] }

// String returns the ID in 40 or 64 hexadecimal digits, which are zeros for the zero ID.
func (id ID) String() string {
	if id.size == 0 {
		return zeroText
	}
	var text [2 * sha256.Size]byte
	return string(text[:hex.Encode(text[:], id.sum[:id.size])])
}

// Compare orders IDs by their bytes.
func (id ID) Compare(other ID) int { return bytes.Compare(id.sum[:], other.sum[:]) }

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

// EmptyTree returns the ID of a tree without entries.
func (f Format) EmptyTree() ID { return f.Hash(plumbing.TreeObject, nil) }

// Corruptf returns an error for missing or damaged objects: retryable, of ClassCorrupt. If it wraps an error that
// has a class, it keeps that class.
func Corruptf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if git.IsClassified(err) {
		return err
	}
	return git.Errorf(git.Retryable, git.ClassCorrupt, "%w", err)
}

// Hostilef returns an error for content that must not be checked out: permanent, of ClassHostile.
func Hostilef(format string, args ...any) error {
	return git.Errorf(git.Permanent, git.ClassHostile, format, args...)
}

// Quotaf returns an error for a repository that exceeds a limit: permanent, of ClassQuota.
func Quotaf(format string, args ...any) error {
	return git.Errorf(git.Permanent, git.ClassQuota, format, args...)
}

// RecoverCorrupt turns, when deferred, a panic of go-git on damaged objects into an error of ClassCorrupt.
func RecoverCorrupt(err *error) {
	if cause := recover(); cause != nil {
		*err = Corruptf("read Git objects: panic: %v", cause)
	}
}
