package archive

import (
	"archive/tar"
	"bytes"
	"strings"
)

// Fields of a header: see https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html#tag_20_92_13_06.
const (
	blockSize  = 512
	nameSize   = 100 // bytes, also of the target of a link
	sizeAt     = 124
	sizeDigits = 11 // octal
	sumAt      = 148
	sumDigits  = 6
	linkAt     = 157
)

// template is a header without name, size and target.
type template struct {
	header tar.Header
	block  [blockSize]byte
	sum    int // of its bytes, with spaces for the checksum
}

var (
	plainFile  = newTemplate(tar.TypeReg, 0o644)
	executable = newTemplate(tar.TypeReg, 0o755)
	link       = newTemplate(tar.TypeSymlink, 0o777)
	submodule  = newTemplate(tar.TypeDir, 0o755)
)

func newTemplate(kind byte, mode int64) *template {
	t := &template{header: tar.Header{Typeflag: kind, Mode: mode, ModTime: epoch}}
	copy(t.block[:], t.formatted("x", "", 0))
	t.block[0] = 0
	copy(t.block[sumAt:], "        ")
	for _, b := range t.block {
		t.sum += int(b)
	}
	return t
}

// formatted returns the header as package tar writes it. It panics if the name or the target contains a zero byte, which no file system allows.
func (t *template) formatted(name, target string, size int64) []byte {
	header := t.header
	header.Name, header.Linkname, header.Size = name, target, size
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&header); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// appendTo appends the header of a file. It gives the bytes of package tar, which takes ten times as long.
func (t *template) appendTo(to []byte, name, target string, size int64) []byte {
	if !fits(name) || !fits(target) || size >= 1<<(3*sizeDigits) {
		return append(to, t.formatted(name, target, size)...)
	}
	to = append(to, t.block[:]...)
	block := to[len(to)-blockSize:]
	sum := t.sum
	for i := range copy(block, name) {
		sum += int(name[i])
	}
	for i := range copy(block[linkAt:], target) {
		sum += int(target[i])
	}
	for i := sizeAt + sizeDigits - 1; size > 0; i-- {
		block[i] += byte(size & 7) // '0' before
		sum += int(size & 7)
		size >>= 3
	}
	for i := sumAt + sumDigits - 1; i >= sumAt; i-- {
		block[i] = '0' + byte(sum&7)
		sum >>= 3
	}
	block[sumAt+sumDigits] = 0
	return to
}

// fits reports whether a header has room for a name, and needs no record in UTF-8 for it.
func fits(name string) bool {
	return len(name) <= nameSize && strings.IndexFunc(name, func(r rune) bool { return r >= 0x80 || r == 0 }) < 0
}
