package handlers_test

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/gitserver"
	"lockstep/internal/watch"
)

// read returns the content of a published file.
func (w *world) read(path string) string {
	w.t.Helper()
	content, err := os.ReadFile(filepath.Join(w.root, filepath.FromSlash(path)))
	if err != nil {
		w.t.Error(err)
	}
	return string(content)
}

func TestWatchesOfARefShareItsLFSFiles(t *testing.T) {
	w := newWorld(t)
	server := w.git.LFS("acme/widgets")
	a, b := server.Put("object a"), server.Put("object b")
	w.create(map[string]string{".gitattributes": "*.bin filter=lfs\n", "a.bin": a, "b.bin": b})
	url := w.git.URL("acme/widgets")
	want := func(entry, requests, first, second string) {
		t.Helper()
		if got := requested(w.due(entry)); got != requests {
			t.Errorf("%s: requested %q, want %q", entry, got, requests)
		}
		if x, y := w.read("acme/widgets/a.bin"), w.read("acme/widgets/b.bin"); x != first || y != second {
			t.Errorf("%s: the files are %q and %q, want %q and %q", entry, x, y, first, second)
		}
	}
	w.watch("plain", "")
	want("a-0", "pushed plain", a, b)
	art := w.watchAs(watch.Watch{App: "art", URL: url, Options: watch.With(lfs.Options{Mode: lfs.Fetch, Include: []string{"a*"}})}, "")
	want("b-0", "pushed art, pushed plain", "object a", b)
	want("c-0", "", "object a", b)
	main := w.watchAs(watch.Watch{App: "main", URL: url, Options: watch.With(lfs.Options{Mode: lfs.Fetch, Include: []string{"b*"}})}, gitserver.Main)
	want("d-0", "pushed art, pushed main refs/heads/main, pushed plain", "object a", "object b")
	w.mustHandle("e-0", events.Change{URL: url}) // by no watch
	want("f-0", "", "object a", "object b")
	w.unwatch(art)
	w.unwatch(main)
	want("g-0", "pushed plain", a, b)
}

// TestURLsWithoutGitCoverLFS has a credential whose prefix is the URL of the repository as a browser shows it.
func TestURLsWithoutGitCoverLFS(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{".gitattributes": "*.bin filter=lfs\n", "a.bin": w.git.LFS("acme/widgets").Put("content")})
	w.git.RequireAuth("acme/widgets", "bot", "right")
	w.credential("ci", "right", "acme/widgets")
	url := w.git.URL("acme/widgets")
	w.watchAs(watch.Watch{App: "art", URL: url, Credential: "ci", Options: watch.With(lfs.Options{Mode: lfs.Fetch})}, "")
	w.mustHandle("1-0", events.Change{URL: url, Credential: "ci", App: "art", Watched: true})
	if got := w.read("acme/widgets/a.bin"); got != "content" {
		t.Errorf("the file is %q", got)
	}
}
