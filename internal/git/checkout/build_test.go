package checkout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
)

// TestBuildStopsAtOnce cancels a build of linked files after a number of them. Each goroutine finishes one more.
func TestBuildStopsAtOnce(t *testing.T) {
	last, files := t.TempDir(), 1000
	items := make([]Item, files)
	for i := range items {
		path := fmt.Sprintf("f%04d", i)
		testenv.Must(0, os.WriteFile(filepath.Join(last, path), nil, permRegular))(t)
		items[i] = Item{entry: entry{path: path, mode: 0o100644}}
		items[i].was = describe(items[i].entry, statOf(t, filepath.Join(last, path)), object.SHA1)
	}
	for _, after := range []int64{1, 100, 500} {
		wanted := errors.New("wanted")
		ctx, cancel := context.WithCancelCause(t.Context())
		var mu sync.Mutex // the other goroutines go on once the context is cancelled
		var made int64
		b := &builder{writer: writer{objects: &object.Store{}, links: LinksKeep}, maxBytes: 1 << 20, items: items, count: func(int64) {
			mu.Lock()
			defer mu.Unlock()
			if made++; made == after {
				cancel(wanted)
			}
		}}
		_, _, err := b.build(ctx, t.TempDir(), last)
		if !errors.Is(err, wanted) || made > after+int64(runtime.GOMAXPROCS(0)) {
			t.Errorf("cancelled after %d files: %d were made, %v", after, made, err)
		}
	}
}

// TestFoldersOf counts the names in each folder of a manifest.
func TestFoldersOf(t *testing.T) {
	made := manifest{{path: "a"}, {path: "b/c/d"}, {path: "b/e"}, {path: "b/sub", mode: 0o160000}, {path: "bb"}, {path: "c/c/c"}}
	want := []namesIn{{"", 4}, {"b", 3}, {"b/c", 1}, {"b/sub", 0}, {"c", 1}, {"c/c", 1}}
	if got := foldersOf(made); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestFoldersByDepth lists each folder once, after its parent.
func TestFoldersByDepth(t *testing.T) {
	var items []Item
	for _, path := range []string{"a", "b-c/x", "b/c/d/e", "b/c/f", "b/g", "b/h/i", "c/d", "c/e/f"} {
		items = append(items, Item{entry: entry{path: path}})
	}
	if got, want := fmt.Sprint(foldersByDepth(items)), "[[b-c b c] [b/c b/h c/e] [b/c/d]]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func statOf(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	testenv.Must(0, unix.Lstat(path, &st))(t)
	return st
}

func TestChecksOfLinksStopAtOnce(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	objects := object.Open(t.TempDir())
	defer objects.Close()
	items := []Item{{entry: entry{path: "link", mode: 0o120000}}}
	if _, err := (&Plan{}).leavingLinks(ctx, objects, items, LinksSkip); !errors.Is(err, stopped) {
		t.Errorf("error %v, want that of the context", err)
	}
}
