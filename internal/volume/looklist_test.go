package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"lockstep/internal/testenv"
)

func TestLookList(t *testing.T) {
	t.Parallel()
	f := folder{t.TempDir()}
	names := func(before time.Time) (trees []string, next int64) {
		t.Helper()
		for _, look := range testenv.Must(f.firstLooks(before))(t) {
			trees, next = append(trees, look.tree), look.next
		}
		return trees, next
	}
	expect := func(when string, want ...string) (next int64) {
		t.Helper()
		got, next := names(time.Now().Add(time.Hour))
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
		return next
	}
	expect("no file")
	testenv.Must(0, f.lookLater("1-a", "2-b"))(t)
	testenv.Must(0, f.lookLater("3-c"))(t)
	expect("added", "1-a", "2-b", "3-c")
	if got, next := names(time.Now().Add(-time.Hour)); len(got) != 1 {
		t.Errorf("up to the first that is not due: %v", got)
	} else {
		testenv.Must(0, f.looked(next))(t)
	}
	all := expect("one was looked at", "2-b", "3-c")

	half := testenv.Must(os.OpenFile(f.lookList(), os.O_WRONLY|os.O_APPEND, 0))(t)
	testenv.Must(half.WriteString("17952"))(t)
	testenv.Must(0, half.Close())(t)
	expect("half an entry", "2-b", "3-c")
	testenv.Must(0, f.lookLater("4-d"))(t)
	expect("an entry after half of one", "2-b", "3-c", "4-d")
	testenv.Must(0, f.looked(all))(t)
	testenv.Must(0, f.looked(expect("two were looked at", "4-d")))(t)
	expect("all were looked at")
	if info := testenv.Must(os.Stat(f.lookList()))(t); info.Size() != lookHead {
		t.Errorf("%d bytes without entries, want %d", info.Size(), lookHead)
	}
	testenv.Must(0, f.writeLooks([]retiredTree{{name: "5-e", age: time.Minute}, {name: "6-f"}}))(t)
	expect("written anew", "5-e", "6-f")
	testenv.Must(0, os.WriteFile(f.lookList(), []byte("damaged"), 0o644))(t)
	expect("damaged")
	testenv.Must(0, f.lookLater("7-g"))(t)
	expect("added to a damaged one", "7-g")
}

func TestLookListStaysSmall(t *testing.T) {
	t.Parallel()
	f := folder{t.TempDir()}
	var trees []string
	for i := range lookWaste / 10 {
		trees = append(trees, fmt.Sprintf("%d-0123456789ab", i))
	}
	testenv.Must(0, f.lookLater(trees...))(t)
	before := testenv.Must(os.Stat(f.lookList()))(t).Size()
	for range trees[:len(trees)*3/4] {
		looks := testenv.Must(f.firstLooks(time.Time{}))(t)
		testenv.Must(0, f.looked(looks[0].next))(t)
	}
	if after := testenv.Must(os.Stat(f.lookList()))(t).Size(); after > before*2/3 {
		t.Errorf("%d bytes, %d before three quarters were looked at", after, before)
	}
	if looks := testenv.Must(f.firstLooks(time.Time{}))(t); looks[0].tree != trees[len(trees)*3/4] {
		t.Errorf("the first is %s", looks[0].tree)
	}
}

// A list that is lost, as in a power cut, is written anew by the next sync.
func TestLostLookList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	old := w.sync("")
	w.push(map[string]string{"a": "2"})
	w.sync("")
	testenv.Must(0, os.Remove(w.volume.folder(repoPath(t, widgets)).lookList()))(t)
	w.sync("")
	if !isThere(t, w.path(old.Tree)) {
		t.Fatal("the tree was deleted within its grace")
	}
	w.mustKeepOnlyPublished(widgets)
}

// A store that was replaced goes with the last tree that uses it, without GC.
func TestReplacedStoreGoesWithItsLastTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume.cfg.Grace = time.Hour
	w.create(map[string]string{"a": "1"})
	for i := range 3 {
		w.push(map[string]string{"a": fmt.Sprint(i)})
		w.sync("")
	}
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, f.generation(1).requestRefetch())(t)
	for i := range 3 {
		w.push(map[string]string{"a": fmt.Sprint("new ", i)})
		w.sync("")
	}
	if n := len(testenv.Must(f.generations())(t)); n != 2 {
		t.Fatalf("%d stores while trees use the old one, want 2", n)
	}
	w.mustKeepOnlyPublished(widgets)
	if got := testenv.Must(filepath.Glob(filepath.Join(f.stores(), "*")))(t); len(got) != 1 || filepath.Base(got[0]) != "2" {
		t.Errorf("stores %v, want the new one", got)
	}
}
