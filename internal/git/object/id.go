package object

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
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
	if len(text) != 2*sha1.Size && len(text) != 2*sha256.Size {
		return false
	}
	for i := range len(text) {
		switch c := text[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
		default:
			return false
		}
	}
	return true
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
