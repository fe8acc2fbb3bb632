package volume

import (
	"errors"
	"os"
	"testing"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
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

// With durability process nothing is synced. After an unclean stop, what was lost of views is found and published again.
func TestViewsAfterAnUncleanStop(t *testing.T) { // not parallel: see observeDisk
	w := newProcessWorld(t)
	w.create(map[string]string{"same": "same"})
	w.commit(gitserver.Main, crashFiles(1))
	w.publishViews(w.sync(""), crashViews)
	d := observeDisk(t, w)
	w.commit(gitserver.Main, crashFiles(2))
	res := w.sync("")
	calls := len(d.calls)
	w.publishViews(res, crashViews)
	for _, call := range d.calls[calls:] {
		t.Errorf("synced: %s", call)
	}
	file := w.path(w.viewTrees(widgets, "a")["a"], "a/f")
	testenv.Must(0, errors.Join(os.Remove(file), os.WriteFile(file, nil, 0o644)))(t) // what a power cut may do
	testenv.Must(0, os.Remove(w.path(ViewPath(widgets, "argo", "both"))))(t)
	w.powerCut(Config{Durability: DurabilityProcess})
	if found := w.recover(); found[widgets] == 0 {
		t.Errorf("found %v", found)
	}
	res = w.sync("")
	set := testenv.Must(view.New(crashViews))(t)
	if ok := testenv.Must(w.volume.ViewsPublished(repoPath(t, widgets), "argo", events.Ref{}, true, set))(t); ok {
		t.Error("the views count as published")
	}
	w.publishViews(res, crashViews)
	w.mustHaveViews("recovered", 2)
	w.mustVerify()
}
