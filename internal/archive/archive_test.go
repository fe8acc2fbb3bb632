package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"lockstep/events"
	"lockstep/internal/archive"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// world is a volume with acme/widgets.
type world struct {
	*testing.T
	git   *gitserver.Server
	vol   *volume.Volume
	fence uint64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, git: testenv.Must(gitserver.Start(filepath.Join(t.TempDir(), "remote")))(t)}
	t.Cleanup(w.git.Close)
	w.vol = testenv.Must(volume.OpenVolume(t.TempDir(), volume.Config{}))(t)
	t.Cleanup(w.vol.Close)
	testenv.Must(w.git.Create(t.Context(), "acme/widgets", map[string]string{"README": "hello\n"}))(t)
	return w
}

// commit pushes an edit and opens the tree that is published for it.
func (w *world) commit(edit gitserver.Edit) *tree.Tree {
	w.Helper()
	testenv.Must(w.git.Commit(w.Context(), "acme/widgets", gitserver.Main, edit))(w.T)
	w.fence++
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(w.T)
	testenv.Must(w.vol.Sync(w.Context(), volume.SyncRequest{
		Repo: repo, URL: w.git.URL("acme/widgets"), Fence: w.fence, Base: func(events.Ref, volume.Publication) volume.Base { return volume.Base{} },
		Confirm: func(context.Context) error { return nil },
	}))(w.T)
	opened := testenv.Must(tree.Open(w.vol.Root(), "acme/widgets"))(w.T)
	w.Cleanup(func() { _ = opened.Close() })
	return opened
}

func write(t *testing.T, opened *tree.Tree, f archive.Format, paths ...string) []byte {
	t.Helper()
	contents := archive.New(opened, archive.Options{Paths: testenv.Must(archive.ParsePaths(paths))(t)})
	var b bytes.Buffer
	testenv.Must(0, contents.Write(t.Context(), &b, f))(t)
	return b.Bytes()
}

// entries lists the entries of an archive with mode, type, target and content.
func entries(t *testing.T, packed []byte, f archive.Format) (list []string) {
	t.Helper()
	var r io.Reader = testenv.Must(zstd.NewReader(nil))(t)
	if f == archive.TarGz {
		r = testenv.Must(gzip.NewReader(bytes.NewReader(packed)))(t)
	} else {
		testenv.Must(0, r.(*zstd.Decoder).Reset(bytes.NewReader(packed)))(t)
	}
	for in := tar.NewReader(r); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		content := testenv.Must(io.ReadAll(in))(t)
		if err != nil || header.Uid != 0 || header.Uname != "" || header.ModTime.Year() != 2000 {
			t.Fatalf("%+v, %v", header, err)
		}
		list = append(list, strings.TrimSpace(fmt.Sprintf("%c %o %s %s %.20q", header.Typeflag, header.Mode, header.Name, header.Linkname, content)))
	}
}

var long = strings.Repeat("long/", 40) + strings.Repeat("n", 150)

func every() gitserver.Edit {
	return gitserver.Edit{
		Write:     map[string]string{"a b": "spaces", "docs/a.md": "# a", "docs/deep/b.md": "# b", "docs.txt": "no folder", "empty": "", long: "x", "ümläut": "u", "latin1-\xe9": "raw"},
		Exec:      map[string]string{"run": "#!/bin/sh\n"},
		Link:      map[string]string{"link": "docs/a.md", "out": "../../etc/passwd"},
		Submodule: map[string]string{"sub": strings.Repeat("1", 40)},
	}
}

func TestArchiveHasEveryFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	opened := w.commit(every())
	want := []string{
		`0 644 README  "hello\n"`, `0 644 a b  "spaces"`, `0 644 docs.txt  "no folder"`, `0 644 docs/a.md  "# a"`, `0 644 docs/deep/b.md  "# b"`,
		`0 644 empty  ""`, "0 644 latin1-\xe9  \"raw\"", `2 777 link docs/a.md ""`, `0 644 ` + long + `  "x"`, `2 777 out ../../etc/passwd ""`,
		`0 755 run  "#!/bin/sh\n"`, `5 755 sub/  ""`, `0 644 ümläut  "u"`,
	}
	for _, f := range []archive.Format{archive.TarZst, archive.TarGz} {
		if got := entries(t, write(t, opened, f), f); !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", f, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for paths, want := range map[string]int{"docs": 2, "docs/": 2, "docs/**": 2, "docs/*": 1, "docs/a.md": 1, "**/*.md": 2, "doc": 0, "run,docs": 3, "{docs,run}": 1, "sub": 1,
		"latin1-\xe9": 1, "latin1-?": 1, `d\ocs`: 2, `docs\*`: 0} {
		list := strings.Split(paths, ",")
		if paths == "{docs,run}" {
			list = []string{paths}
		}
		if got := entries(t, write(t, opened, archive.TarZst, list...), archive.TarZst); len(got) != want {
			t.Errorf("%s: %v, want %d", paths, got, want)
		}
	}
	for _, path := range []string{"", "/", "/etc", "../x", "a/../b", "a//b", ".", "..", "[", strings.Repeat("x", 2000), "{a}{a}{a}{a}{a}"} {
		if _, err := archive.ParsePaths([]string{path}); err == nil || !strings.Contains(err.Error(), "want a file") {
			t.Errorf("%.30q: %v", path, err)
		}
	}
	if _, err := archive.ParsePaths(make([]string, 101)); err == nil {
		t.Error("101 paths")
	}
}

// TestGlobsAreLimited has globs whose alternatives multiply: the first would take years to compare.
func TestGlobsAreLimited(t *testing.T) {
	t.Parallel()
	many := "{" + strings.Repeat("a,", 120) + "a}"
	for _, list := range [][]string{
		{strings.Repeat(many, 4) + "x"}, {many + many}, {"{" + many + ",b}{a,b}"}, {`{\},` + many[1:] + "{a,b}"}, {"{[}]," + many[1:] + "{a,b}"}, {strings.Repeat("{a,b,c,d}", 4)}, {many, many + "b"},
	} {
		if _, err := archive.ParsePaths(list); err == nil || !strings.Contains(err.Error(), "at most 200 in all") {
			t.Errorf("%.100q: %v", list, err)
		}
	}
	for _, list := range [][]string{{many}, {"{a,b}{c,d}{e,f}{g,h}"}, {"{a}{a}{a}{a}"}, {`\{a,b,c\}`}} {
		if _, err := archive.ParsePaths(list); err != nil {
			t.Errorf("%.100q: %v", list, err)
		}
	}
}

// TestSameBytesForSameFiles fixes the bytes, too: if they change, so must Version.
func TestSameBytesForSameFiles(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t), newWorld(t)
	first := w.commit(every())
	again, elsewhere := w.commit(gitserver.Edit{Message: "no change"}), other.commit(every())
	if first.Commit() == again.Commit() {
		t.Fatal("want another commit")
	}
	changed := w.commit(gitserver.Edit{Write: map[string]string{"docs/a.md": "# A"}})
	executable := w.commit(gitserver.Edit{Exec: map[string]string{"docs/a.md": "# A"}})
	for f, golden := range map[archive.Format]string{
		archive.TarZst: "43d939e0065b6bbf2d3886f55c253f2c3f5cdad2a5dd0a8ecef887740878c5de",
		archive.TarGz:  "3d9f9e40ab9a99570f6b371210ab47b74a6b9bf4a33c59574162129e98773496",
	} {
		packed := write(t, first, f)
		if got := fmt.Sprintf("%x", sha256.Sum256(packed)); got != golden {
			t.Errorf("%s has the SHA-256 %s, want %s; if that is intended, increment Version", f, got, golden)
		}
		if !bytes.Equal(packed, write(t, again, f)) || !bytes.Equal(packed, write(t, elsewhere, f)) {
			t.Errorf("%s: other bytes for the same files", f)
		}
	}
	tag := func(opened *tree.Tree, f archive.Format, paths ...string) string {
		contents := archive.New(opened, archive.Options{Paths: testenv.Must(archive.ParsePaths(paths))(t)})
		return testenv.Must(contents.Summary(t.Context()))(t).ETag(f)
	}
	one := tag(first, archive.TarZst)
	if tag(again, archive.TarZst) != one || tag(elsewhere, archive.TarZst) != one {
		t.Error("another ETag for the same files")
	}
	for name, differs := range map[string]string{
		"another format": tag(first, archive.TarGz), "other paths": tag(first, archive.TarZst, "docs"), "other content": tag(changed, archive.TarZst),
		"another mode": tag(executable, archive.TarZst),
	} {
		if differs == one || differs == tag(changed, archive.TarZst) && name == "another mode" {
			t.Errorf("%s: the same ETag", name)
		}
	}
	if tag(first, archive.TarZst, "run") != tag(changed, archive.TarZst, "run", "run/") {
		t.Error("another ETag for the same selection")
	}
}

func TestAlteredTreeHasNoArchive(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]func(dir string) error{
		"a longer file":     func(dir string) error { return os.WriteFile(filepath.Join(dir, "docs/a.md"), []byte("longer"), 0o644) },
		"a missing file":    func(dir string) error { return os.Remove(filepath.Join(dir, "docs/a.md")) },
		"a missing folder":  func(dir string) error { return os.RemoveAll(filepath.Join(dir, "docs")) },
		"a link for a file": func(dir string) error { return relink(dir, "docs/a.md") },
		"a folder's link":   func(dir string) error { return relink(dir, "docs") },
		"a pipe":            func(dir string) error { return pipe(dir, "docs/a.md") },
		"a list cut short":  func(dir string) error { return os.Truncate(filepath.Join(dir, ".git/lockstep-index"), 100) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			opened := w.commit(every())
			testenv.Must(0, alter(opened.Dir()))(t)
			contents := archive.New(opened, archive.Options{})
			var b bytes.Buffer
			if err := contents.Write(t.Context(), &b, archive.TarZst); !errors.Is(err, archive.ErrAltered) {
				t.Errorf("%v", err)
			}
			decoder := testenv.Must(zstd.NewReader(&b))(t)
			defer decoder.Close()
			if _, err := io.Copy(io.Discard, decoder); err == nil && b.Len() > 0 {
				t.Error("what was written is a complete archive")
			}
		})
	}
	w := newWorld(t)
	opened := w.commit(every())
	testenv.Must(0, os.Remove(filepath.Join(opened.Dir(), ".git/lockstep-index")))(t)
	if _, err := archive.New(opened, archive.Options{}).Summary(t.Context()); !errors.Is(err, archive.ErrAltered) {
		t.Errorf("without a list: %v", err)
	}
}

func relink(dir, name string) error {
	path := filepath.Join(dir, name)
	return errors.Join(os.Rename(path, path+"-away"), os.Symlink(filepath.Base(name)+"-away", path))
}

func pipe(dir, name string) error {
	path := filepath.Join(dir, name)
	return errors.Join(os.Remove(path), exec.Command("mkfifo", path).Run())
}

func TestFilesAndPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	opened := w.commit(every())
	contents := archive.New(opened, archive.Options{})
	for name, want := range map[string]string{"docs/a.md": "# a", "empty": "", "link": "docs/a.md", "out": "../../etc/passwd", long: "x", "latin1-\xe9": "raw"} {
		f, err := contents.Open(t.Context(), name)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if content, err := io.ReadAll(f); string(content) != want || err != nil || len(f.ETag) != 42 {
			t.Errorf("%q: %q, %v, ETag %s", name, content, err, f.ETag)
		}
		testenv.Must(0, f.Close())(t)
	}
	for name, want := range map[string]error{
		"docs": archive.ErrFolder, "sub": archive.ErrFolder, "doc": archive.ErrNoFile, "docs/": archive.ErrNoFile, "": archive.ErrNoFile, "zzz": archive.ErrNoFile,
		".git/config": archive.ErrNoFile, "../widgets/README": archive.ErrNoFile, "link/a": archive.ErrNoFile, "docs.txt/": archive.ErrNoFile,
	} {
		if _, err := contents.Open(t.Context(), name); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
	var names []string
	for after, more := "", true; more; {
		var page []archive.Entry
		var err error
		page, more, err = contents.Page(t.Context(), after, 2)
		if err != nil || len(page) == 0 || len(page) > 2 {
			t.Fatal(page, err)
		}
		for _, e := range page {
			names = append(names, fmt.Sprintf("%s %o %d", e.Path, e.Mode, e.Bytes))
		}
		after = page[len(page)-1].Path
	}
	if len(names) != 13 || !slices.Contains(names, "docs/a.md 100644 3") || !slices.Contains(names, "link 120000 9") || !slices.Contains(names, "sub 160000 0") ||
		!slices.Contains(names, "run 100755 10") {
		t.Errorf("%q", names)
	}
}
