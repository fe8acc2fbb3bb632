package serve

import (
	"strings"
	"testing"

	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestPackSize compares the bytes of packs with those of git pack-objects: of pushes one after another, whose objects are loose
// as in a store of Lockstep's, and of a clone. Renames and copies are found, and new versions of files are sent as deltas.
func TestPackSize(t *testing.T) {
	testenv.SkipUnderRace(t)
	w := newWorld(t, nil)
	a := newAuthor(w, widgets, "sha1", 42)
	a.commits(20)
	w.git(w.forge.Dir(widgets), "gc", "--quiet")
	clone := t.TempDir() + "/clone"
	w.git(t.TempDir(), "clone", "-q", "--mirror", w.url(widgets), clone)
	w.packs()
	var ours, theirs int64
	for i := range testenv.Form(3, 100) {
		before := strings.Fields(w.git(clone, "for-each-ref", "--format=^%(objectname)"))
		a.commits(1 + a.random.IntN(3))
		if i == 1 {
			w.git(w.forge.Dir(widgets), "gc", "--quiet")
		}
		w.git(clone, "fetch", "-q", "origin", "+refs/*:refs/*")
		var sent int64
		for _, s := range w.packs() {
			sent += s.Bytes
		}
		thin := w.packObjects(strings.Join(before, "\n"), "--all")
		if sent > 2*thin+1000 {
			t.Errorf("push %d: %d bytes, git %d", i, sent, thin)
		}
		ours, theirs = ours+sent, theirs+thin
	}
	w.ratio("pushes", ours, theirs, 1.2)
	w.git(t.TempDir(), "clone", "-q", "--mirror", w.url(widgets), t.TempDir()+"/again")
	w.ratio("clone with loose objects", w.packs()[0].Bytes, w.packObjects("", "--all"), 1.2)
	w.git(w.forge.Dir(widgets), "gc", "--quiet")
	w.git(t.TempDir(), "clone", "-q", "--mirror", w.url(widgets), t.TempDir()+"/again")
	w.ratio("clone of a pack", w.packs()[0].Bytes, w.packObjects("", "--all"), 1.05)
	w.git(t.TempDir(), "clone", "-q", "--depth=1", w.url(widgets), t.TempDir()+"/again")
	w.ratio("clone at depth 1", w.packs()[0].Bytes, w.packObjects("--shallow "+w.forge.Head(widgets, "refs/heads/main")+"\nrefs/heads/main", "--shallow"), 1.2)
}

// packObjects returns the size of the pack that git makes for revisions.
func (w *world) packObjects(revisions string, options ...string) int64 {
	w.Helper()
	pack := testenv.Must(gitserver.Git(w.Context(), w.forge.Dir(widgets), revisions+"\n",
		append([]string{"pack-objects", "--revs", "--thin", "--stdout", "--delta-base-offset", "-q"}, options...)...))(w)
	return int64(len(pack))
}

func (w *world) ratio(of string, ours, theirs int64, limit float64) {
	w.Helper()
	ratio := float64(ours) / float64(theirs)
	w.Logf("%s: %d bytes, git pack-objects --thin %d: %.2f", of, ours, theirs, ratio)
	if ratio > limit {
		w.Errorf("%s: %.2f times the bytes of git pack-objects, want at most %.2f", of, ratio, limit)
	}
}
