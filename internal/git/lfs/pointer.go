package lfs

import (
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

// OID is the SHA-256 of an LFS object.
type OID [32]byte

// ParseOID parses 64 lower-case hexadecimal digits.
func ParseOID(text string) (oid OID, ok bool) {
	if len(text) != 2*len(oid) || strings.ToLower(text) != text {
		return OID{}, false
	}
	_, err := hex.Decode(oid[:], []byte(text))
	return oid, err == nil
}

// String returns the OID in hexadecimal.
func (o OID) String() string { return hex.EncodeToString(o[:]) }

// Pointer names an object and its size.
type Pointer struct {
	OID  OID
	Size int64 // bytes
}

// maxPointer is the size that the blob of a pointer must be below, in bytes.
const maxPointer = 1024

var (
	versions = map[string]bool{
		"https://git-lfs.github.com/spec/v1": true,
		"https://hawser.github.com/spec/v1":  true,
		"http://git-media.io/v/2":            true,
	}
	extensionKey = regexp.MustCompile(`^ext-[0-9]-\w+`)
)

// ParsePointer parses a blob as git-lfs does, which accepts empty lines and spaces at both ends. It returns
// false for any other blob, an empty one, and a pointer with extensions.
func ParsePointer(blob []byte) (p Pointer, ok bool) {
	if len(blob) >= maxPointer {
		return Pointer{}, false
	}
	var values []string // of the keys below, in this order
	keys := []string{"version", "oid", "size"}
	for line := range strings.SplitSeq(strings.TrimSpace(string(blob)), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			continue
		}
		key, value, found := strings.Cut(line, " ")
		if !found || len(values) == len(keys) || key != keys[len(values)] || extensionKey.MatchString(key) {
			return Pointer{}, false
		}
		values = append(values, value)
	}
	if len(values) < len(keys) || !versions[values[0]] {
		return Pointer{}, false
	}
	hash, hasPrefix := strings.CutPrefix(values[1], "sha256:")
	oid, valid := ParseOID(hash)
	size, err := strconv.ParseInt(values[2], 10, 64)
	if !hasPrefix || !valid || err != nil || size < 0 {
		return Pointer{}, false
	}
	return Pointer{oid, size}, true
}
