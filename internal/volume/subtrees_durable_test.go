package volume

import (
	"testing"

	"lockstep/internal/gitserver"
)

// TestViewsAreDurableBeforeTheFlip checks at the flip that all trees, and the mark that the links are unfinished, are on disk, and then
// the names.
func TestViewsAreDurableBeforeTheFlip(t *testing.T) { // not parallel: see observeDisk
	w := newWorld(t)
	d := observeDisk(t, w)
	f := w.volume.folder(repoPath(t, widgets))
	note := f.origin(subtreeFolder(widgets, "argo"))
	w.volume.cfg.Step = func(step string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		switch step {
		case "subtrees unfinished":
			for _, tree := range subtreesIn(t, f) {
				d.mustHave(f.tree(tree))
			}
			d.mustHave(note)
		case "subtrees flipped":
			for name := range crashViews {
				d.mustHaveName(w.path(SubtreePath(widgets, "argo", name)))
			}
			d.mustHave(note)
		}
	}
	w.create(map[string]string{"same": "same"})
	for version := range 3 {
		w.commit(gitserver.Main, crashFiles(version+1))
		w.publishViews(w.sync(""), crashViews)
		w.mustHaveViews("published", version+1)
	}
	w.push(map[string]string{"other": "1"})
	res := w.sync("")
	calls := len(d.calls)
	if w.publishViews(res, crashViews); len(d.calls) != calls+2 {
		t.Errorf("a push to no view synced %q, want only %s", d.calls[calls:], note)
	}

	w.push(map[string]string{"a/f": "crashed"})
	res, placed, step := w.sync(""), 0, w.volume.cfg.Step
	w.volume.cfg.Step = func(at string) {
		if at == "subtree placed" {
			placed++
		}
		if placed == 2 { // all, and the folder is not synced
			panic(at)
		}
	}
	if !panics(func() { w.publishViews(res, crashViews) }) {
		t.Error("not crashed")
	}
	w.volume.cfg.Step = step
	w.publishViews(res, crashViews)
}

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}
