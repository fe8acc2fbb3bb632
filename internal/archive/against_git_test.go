package archive_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lockstep/internal/archive"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestSameFilesAsGitArchive compares archives with those of git archive.
func TestSameFilesAsGitArchive(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	w := newWorld(t)
	edit := every()
	for _, name := range []string{strings.Repeat("p", 101), strings.Repeat("ü", 90) + "/x", strings.Repeat("d", 200) + "/" + strings.Repeat("f", 200), "new\nline", `quo"te`, "a,b", " space ", "-rf", "a\\b"} {
		edit.Write[name] = name
	}
	edit.Link[strings.Repeat("l", 120)] = strings.Repeat("t/", 100) + "x"
	random := newText(1)
	for n := range testenv.Form(100, 3000) {
		edit.Write[fmt.Sprintf("src/%03d/%02d/file%d.txt", n%200, n%37, n)] = random(12 << 10)
	}
	opened := w.commit(edit)
	git := func(command string) []byte {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Dir = w.git.Dir("acme/widgets")
		return testenv.Must(cmd.Output())(t)
	}
	packed := write(t, opened, archive.TarZst)
	ours := read(t, testenv.Must(zstd.NewReader(bytes.NewReader(packed)))(t))
	theirs := read(t, bytes.NewReader(git("git archive "+gitserver.Main)))
	if !maps.Equal(ours, theirs) {
		for _, name := range slices.Sorted(maps.Keys(theirs)) {
			if ours[name] != theirs[name] {
				t.Errorf("%.50q is %q, in git's archive %q", name, ours[name], theirs[name])
			}
		}
		t.Errorf("%d files, in git's archive %d", len(ours), len(theirs))
	}
}

// read returns type, executable bit, target and content of the files of an archive.
func read(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for in := tar.NewReader(r); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		sum := sha256.New()
		if testenv.Must(io.Copy(sum, in))(t); header.Typeflag == tar.TypeXGlobalHeader || header.Typeflag == tar.TypeDir && header.Name != "sub/" {
			continue // git names the commit, and lists folders
		}
		files[header.Name] = fmt.Sprintf("%c %t %s %x", header.Typeflag, header.Mode&0o100 != 0, header.Linkname, sum.Sum(nil))
	}
}

// newText returns a function that returns text that deflates to about a third.
func newText(seed uint64) func(size int) string {
	return func(size int) string {
		var b strings.Builder
		for b.Len() < size {
			seed = seed*6364136223846793005 + 1442695040888963407
			fmt.Fprintf(&b, "line %x of a text\n", seed>>40)
		}
		return b.String()
	}
}
