package volume

import (
	"testing"

	"lockstep/internal/disk"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestViewsAreDurableBeforeTheFlip checks at the flip that all trees, and the mark that the links are unfinished, are on disk, and then
// the names.
func TestViewsAreDurableBeforeTheFlip(t *testing.T) { // not parallel: see observeDisk
	w := newWorld(t)
	d := observeDisk(t, w)
	f := w.volume.folder(repoPath(t, widgets))
	w.volume.cfg.Step = func(step string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		switch step {
		case "views unfinished":
			for _, tree := range testenv.Must(disk.ReadDir(f.views().trees()))(t) {
				d.mustHave(f.views().tree(tree.Name()))
			}
			d.mustHave(viewLinks{app: "argo"}.file(f))
		case "views flipped":
			for name := range crashViews {
				d.mustHaveName(w.path(ViewPath(widgets, "argo", name)))
			}
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
	if w.publishViews(res, crashViews); len(d.calls) != calls {
		t.Errorf("a push to no view synced %q", d.calls[calls:])
	}
}
