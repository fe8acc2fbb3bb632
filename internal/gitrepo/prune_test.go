package gitrepo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gittest"
)

func looseCount(t *testing.T, s store) (n int) {
	t.Helper()
	for _, group := range must(readDir(filepath.Join(s.dir, "objects")))(t) {
		if len(group.Name()) == 2 {
			n += len(must(readDir(filepath.Join(s.dir, "objects", group.Name())))(t))
		}
	}
	return n
}

func TestPruneKeepsWhatTreesNeed(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "0", "dir/b": "same", "dir/c": "0"})
	for i := range 10 {
		w.push(map[string]string{"a": fmt.Sprint(i), "dir/c": fmt.Sprint("c", i)})
		w.sync("")
	}
	f := w.volume.folder(repoPath(t, widgets))
	s := must(f.currentStore())(t)
	grown := looseCount(t, s)

	must(0, w.volume.prune(t.Context(), f, w.fence.Load()))(t)
	if n := looseCount(t, s); n != grown {
		t.Errorf("%d of %d objects are left while all trees are there", n, grown)
	}
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	commit := w.push(map[string]string{"a": "last"})
	w.sync("")
	must(0, w.volume.prune(t.Context(), f, w.fence.Load()))(t)
	if n := looseCount(t, s); n > 12 {
		t.Errorf("%d objects are left; two trees need no more than 12", n)
	}
	w.mustBeSound(widgets, commit)
	if out := must(gittest.Git(t.Context(), s.dir, "", "fsck", "--full"))(t); strings.Contains(out, "missing") {
		t.Errorf("git fsck in the store: %s", out)
	}
	next := w.push(map[string]string{"a": "0"}) // whose blob was pruned
	w.sync("")
	w.mustBeSound(widgets, next)
}

func TestAStaleHolderPrunesNothing(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	w.sync("")
	w.push(map[string]string{"a": "1"})
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	s := must(f.currentStore())(t)
	stray := filepath.Join(s.dir, "objects", "17", strings.Repeat("0", 38))
	must(0, os.MkdirAll(filepath.Dir(stray), 0o755))(t)
	must(0, os.WriteFile(stray, nil, 0o644))(t)
	if err := w.volume.prune(t.Context(), f, 1); err == nil {
		t.Error("a stale holder was let prune")
	}
	if _, err := os.Lstat(stray); err != nil {
		t.Errorf("it pruned: %v", err)
	}
}

func TestAStoreDueAfreshIsFetchedAfresh(t *testing.T) {
	w := newWorld(t)
	begun := w.create(map[string]string{"a": "0"})
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	first := must(f.currentStore())(t)
	before := w.push(map[string]string{"b": "0"})
	w.sync("")
	must(0, first.planAfresh())(t)
	commit := w.push(map[string]string{"a": "1", "c": "1"})
	req := w.request("")
	res := must(w.volume.Sync(t.Context(), req))(t)
	if res.Full || res.Before != before {
		t.Errorf("unexpected result %+v", res)
	}
	w.mustMatchGitDiff(res)
	w.mustBeSound(widgets, commit)
	req = w.request("")
	req.Base = func(events.Ref, string) string { return begun } // which only the first store has
	if res = must(w.volume.Sync(t.Context(), req))(t); res.Full {
		t.Errorf("unexpected result %+v", res)
	}
	w.mustMatchGitDiff(res)
	if now := must(f.currentStore())(t); now == first || looseCount(t, now) != 0 {
		t.Errorf("the store is still %s, with %d loose objects", now.dir, looseCount(t, now))
	}

	// One that cannot be fetched whole any more goes on as it is.
	second := must(f.currentStore())(t)
	must(0, second.planAfresh())(t)
	w.volume = w.open(w.volume.Root(), Config{MaxPackBytes: 700})
	w.push(map[string]string{"big": strings.Repeat("0123456789abcdef", 4)})
	w.sync("")
	if second.isDueAfresh() && must(f.currentStore())(t) == second {
		t.Error("the store is still due")
	}
}
