package archive

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestHeadersAreThoseOfPackageTar compares headers of random files with those of package tar.
func TestHeadersAreThoseOfPackageTar(t *testing.T) {
	t.Parallel()
	kinds := []*template{plainFile, executable, link, submodule}
	name := rapid.OneOf(
		rapid.StringMatching(`[ -~]{0,119}[ -.0-~]`), rapid.StringMatching(`a{50,160}/b{1,160}`), rapid.StringMatching(`[a\x01\x7f\xc2-\xc5é\xff-]{1,100}`),
		rapid.Map(rapid.IntRange(95, 105), func(n int) string { return strings.Repeat("n", n) }))
	size := rapid.OneOf(rapid.Int64Range(0, 100_000), rapid.Int64Range(1<<33-3, 1<<33+3), rapid.Int64Range(1, 1<<50))
	rapid.Check(t, func(r *rapid.T) {
		kind := rapid.SampledFrom(kinds).Draw(r, "kind")
		header := kind.header
		header.Name = name.Draw(r, "name")
		switch kind {
		case link:
			header.Linkname = name.Draw(r, "target")
		case submodule:
			header.Name += "/"
		default:
			header.Size = size.Draw(r, "size")
		}
		var want bytes.Buffer
		if err := tar.NewWriter(&want).WriteHeader(&header); err != nil {
			r.Fatal(err)
		}
		before := []byte("before")
		got := kind.appendTo(before, header.Name, header.Linkname, header.Size)
		if !bytes.Equal(got, append([]byte("before"), want.Bytes()...)) {
			r.Fatalf("%q, %q, %d:\n%q\nwant\n%q", header.Name, header.Linkname, header.Size, got[6:], want.Bytes())
		}
	})
}
