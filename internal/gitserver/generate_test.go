package gitserver

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	s := start(t)
	shape := Shape{Files: 400, Bytes: 3 << 20, Seed: 7}
	commit, err := s.Generate(t.Context(), widgets, shape)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Head(widgets, "refs/heads/"+Main); got != commit {
		t.Errorf("main is at %s, want %s", got, commit)
	}
	list, err := s.Git(t.Context(), widgets, "", "ls-tree", "-r", "-l", "--full-tree", commit)
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int
	var plain, deflated, deepest, programs int
	for line := range strings.Lines(list) {
		var mode, kind, hash, path string
		var size int
		if _, err := fmt.Sscan(line, &mode, &kind, &hash, &size, &path); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sizes = append(sizes, size)
		deepest = max(deepest, strings.Count(path, "/"))
		if mode == "100755" {
			programs++
		}
		if len(sizes)%20 == 0 {
			text, err := s.Git(t.Context(), widgets, "", "cat-file", "blob", hash)
			if err != nil {
				t.Fatal(err)
			}
			plain += len(text)
			deflated += deflate(t, text)
		}
	}
	total := 0
	for _, size := range sizes {
		total += size
	}
	if len(sizes) != shape.Files || math.Abs(float64(total)/float64(shape.Bytes)-1) > 0.01 {
		t.Errorf("%d files of %d bytes, want %d of %d", len(sizes), total, shape.Files, shape.Bytes)
	}
	if ratio := float64(plain) / float64(deflated); ratio < 2.5 || ratio > 3.5 {
		t.Errorf("text deflates to 1/%.2f, want about a third", ratio)
	}
	slices.Sort(sizes)
	if mean, median := total/len(sizes), sizes[len(sizes)/2]; mean < 3*median/2 {
		t.Errorf("mean size %d, median %d: not distributed like file sizes", mean, median)
	}
	if deepest < 2 || deepest > deepestFolder+1 || programs == 0 || programs > shape.Files/4 {
		t.Errorf("directories nest up to %d deep, %d files are executable", deepest, programs)
	}
	again, err := s.Generate(t.Context(), "acme/again", shape)
	if err != nil || again != commit {
		t.Errorf("the same shape results in %s, %v; want %s", again, err, commit)
	}
	shape.Seed++
	if other, err := s.Generate(t.Context(), "acme/other", shape); err != nil || other == commit {
		t.Errorf("another seed results in %s, %v", other, err)
	}
	for name, shape := range map[string]Shape{"no files": {}, "more folders than files": {Files: 5, Folders: 6, Bytes: 100}} {
		if _, err := s.Generate(t.Context(), "acme/none", shape); err == nil {
			t.Errorf("a repository with %s was generated", name)
		}
	}
}

func TestGenerateMakesTheGivenNumberOfFolders(t *testing.T) {
	s := start(t)
	for i, shape := range []Shape{{Files: 300, Folders: 90, Bytes: 30_000}, {Files: 5, Folders: 5, Bytes: 500}, {Files: 50, Folders: 1, Bytes: 500}} {
		repo := fmt.Sprint("acme/folders-", i)
		if _, err := s.Generate(t.Context(), repo, shape); err != nil {
			t.Fatal(err)
		}
		for kind, want := range map[string]int{"-d": shape.Folders, "--full-tree": shape.Files} {
			list, err := s.Git(t.Context(), repo, "", "ls-tree", "-r", "--name-only", kind, Main)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(list, "\n") + 1; got != want {
				t.Errorf("%+v: ls-tree %s lists %d, want %d", shape, kind, got, want)
			}
		}
	}
}

func deflate(t *testing.T, text string) int {
	t.Helper()
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Len()
}
