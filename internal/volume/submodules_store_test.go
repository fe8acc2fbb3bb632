package volume

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestAlteredFilesOfSubmodules alters published files, which later trees share.
func TestAlteredFilesOfSubmodules(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.simple()
	w.syncParts(events.SubmodulesRequired)
	for _, prepare := range []bool{false, true} {
		testenv.Must(0, os.WriteFile(w.path(widgets, "sub/l"), []byte("altered"), 0o644))(t)
		if prepare {
			w.prepare()
		}
		w.push(map[string]string{"a": fmt.Sprint(prepare)})
		w.syncParts(events.SubmodulesRequired)
		w.mustRead(widgets, map[string]string{
			"a": fmt.Sprint(prepare), "sub/l": "library", "sub/dir/m": "more", ".gitmodules": gitmodules(map[string]string{"sub": "../lib.git"}),
		})
	}
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.gc(true)
	w.gc(true)
	w.mustBeAsCloned("replaced")

	w.mustVerify()
	for path, alter := range map[string]func(path string) error{
		"sub/l": rewrite, "sub/dir/m": os.Remove, "sub/more": func(path string) error { return os.WriteFile(path, nil, 0o644) },
	} {
		testenv.Must(0, alter(w.path(widgets, path)))(t)
		if report := w.verify(true); report.Found != 1 {
			t.Errorf("%s: report %+v", path, report)
		}
		w.syncParts(events.SubmodulesRequired)
		w.gc(true)
		w.gc(true)
		w.mustBeAsCloned("repaired " + path)
	}
}

// parts returns the folders of the stores of submodules.
func (w *world) parts() []string {
	w.t.Helper()
	return testenv.Must(w.volume.folder(repoPath(w.t, widgets)).listParts())(w.t)
}

func TestDamagedStoresOfSubmodules(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, part string){
		"flipped bits": func(t *testing.T, part string) {
			for _, at := range []float64{0.2, 0.4, 0.6, 0.8} {
				flipBit(t, one(t, part, "objects/pack/*.pack"), at)
			}
		},
		"no pack":             func(t *testing.T, part string) { testenv.Must(0, os.Remove(one(t, part, "objects/pack/*.pack")))(t) },
		"no store":            func(t *testing.T, part string) { testenv.Must(0, os.RemoveAll(part))(t) },
		"an empty folder":     func(t *testing.T, part string) { testenv.Must(0, os.RemoveAll(filepath.Join(part, "objects")))(t) },
		"all stores are gone": func(t *testing.T, part string) { testenv.Must(0, os.RemoveAll(filepath.Dir(part)))(t) },
	} {
		for _, push := range testenv.Form([]bool{true}, []bool{false, true}) {
			t.Run(fmt.Sprintf("%s/push=%v", name, push), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.volume = w.open(t.TempDir(), Config{Grace: 1})
				w.simple()
				w.syncParts(events.SubmodulesRequired)
				damage(t, w.parts()[0])
				if report := w.verify(!push); report.Found == 0 {
					t.Error("verify found nothing")
				}
				if push {
					for _, path := range []string{"sub/l", "sub/dir/m"} { // to be written anew
						testenv.Must(0, os.WriteFile(w.path(widgets, path), []byte("altered"), 0o644))(t)
					}
					w.push(map[string]string{"a": "2"})
				}
				w.syncParts(events.SubmodulesRequired)
				if push {
					w.verify(true) // finds what was not needed
					w.syncParts(events.SubmodulesRequired)
				}
				w.gc(true)
				w.gc(true)
				w.mustBeAsCloned(name)
			})
		}
	}
}

// TestDamagedListsOfSubmodules damages what a tree says of its submodules.
func TestDamagedListsOfSubmodules(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"lockstep-submodules", "lockstep-submodules-index", "lockstep-index"} {
		for what, damage := range map[string]func(path string) error{
			"gone":    os.Remove,
			"empty":   func(path string) error { return os.WriteFile(path, nil, 0o644) },
			"garbage": func(path string) error { return os.WriteFile(path, []byte("required\nx y\n"), 0o644) },
		} {
			for _, push := range testenv.Form([]bool{what != "empty"}, []bool{false, true}) {
				t.Run(fmt.Sprintf("%s/%s/push=%v", name, what, push), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					w.volume = w.open(t.TempDir(), Config{Grace: 1})
					w.simple()
					w.syncParts(events.SubmodulesRequired)
					w.prepare()
					testenv.Must(0, damage(w.path(widgets, ".git", name)))(t)
					if push {
						w.push(map[string]string{"a": "2"})
					} else if report := w.verify(true); report.Found == 0 && !(name == "lockstep-index" && what == "gone") {
						t.Error("verify found nothing")
					}
					w.syncParts(events.SubmodulesRequired)
					w.gc(true)
					w.gc(true)
					w.mustBeAsCloned(name)
				})
			}
		}
	}
}

func TestSubmodulesAreCleanedUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1})
	w.simple()
	w.syncParts(events.SubmodulesRequired)
	next := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "2"}})
	w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": next}})
	w.syncParts(events.SubmodulesRequired)
	if got := w.parts(); len(got) != 2 {
		t.Errorf("stores %q, want both within the grace", got)
	}
	w.gc(false)
	w.gc(false)
	if got := w.parts(); len(got) != 1 || !strings.HasSuffix(got[0], "-"+next) {
		t.Errorf("stores %q, want %s", got, next)
	}
	w.mustBeAsCloned("after GC")
	if !w.volume.IsTidy(repoPath(t, widgets)) {
		t.Error("not tidy")
	}
	w.syncParts(events.SubmodulesOff)
	w.gc(false)
	w.gc(false)
	if got := w.parts(); len(got) > 0 {
		t.Errorf("stores %q are left", got)
	}
	w.syncParts(events.SubmodulesRequired)
	req := w.removal()
	req.Force = true
	testenv.Must(w.volume.Remove(t.Context(), req))(t)
	w.volume.AwaitDeletions()
	if entries := testenv.Must(os.ReadDir(w.volume.folder(repoPath(t, widgets)).dir))(t); slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "parts" || e.Name() == "lfs" }) {
		t.Errorf("%v is left of a removed repository", entries)
	}
}

func TestSubmodulesMoveWithTheirRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lib := w.simple()
	w.withParts(widgets, map[string]string{"sub": lib}, map[string]string{"sub": w.git.URL("acme/lib")}, nil) // a relative one would change
	w.syncParts(events.SubmodulesRequired)
	want := treeWithModes(t, w.path(widgets))
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if got := treeWithModes(t, w.path(gadgets)); !maps.Equal(got, want) {
		t.Errorf("moved %q, want %q", got, want)
	}
	w.mustVerifyAt(gadgets)
	fetches := w.uploads("acme/lib")
	testenv.Must(0, os.WriteFile(w.path(gadgets, "sub/l"), []byte("altered"), 0o644))(t)
	w.commitAt(gadgets, gitserver.Edit{Write: map[string]string{"b": "more"}})
	req := w.requestAt(gadgets, "")
	req.Submodules = events.SubmodulesRequired
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	want["b"] = "false more"
	if got := treeWithModes(t, w.path(gadgets)); !maps.Equal(got, want) || w.uploads("acme/lib") != fetches {
		t.Errorf("synced %q with %d fetches, want %q", got, w.uploads("acme/lib")-fetches, want)
	}
}

// The new path has some submodules already, of a push that was synced before the move.
func TestSubmodulesMoveToSyncedPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lib, urls := w.simple(), map[string]string{"sub": w.git.URL("acme/lib")}
	w.withParts(widgets, map[string]string{"sub": lib}, urls, nil)
	newer := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "newer"}})
	w.commit("v1", gitserver.Edit{Write: map[string]string{".gitmodules": gitmodules(urls)}, Submodule: map[string]string{"sub": newer}})
	w.syncParts(events.SubmodulesRequired)
	req := w.request("v1")
	req.Submodules = events.SubmodulesRequired
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	want := treeWithModes(t, w.path(widgets+"@v1"))
	w.rename(widgets, gadgets)
	req = w.requestAt(gadgets, "")
	req.Submodules = events.SubmodulesRequired
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if got := treeWithModes(t, w.path(gadgets+"@v1")); !maps.Equal(got, want) || got["sub/l"] != "false newer" {
		t.Errorf("moved %q, want %q", got, want)
	}
	w.mustVerifyAt(gadgets)
}

// TestALaterCommitFetchesWhatIsNew counts the bytes of fetches, and changes most of a submodule many times.
func TestALaterCommitFetchesWhatIsNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1, Net: wire.Config{Hosts: []string{"127.0.0.1"}}})
	meter := testenv.Must(w.git.StartMeter())(t)
	t.Cleanup(meter.Close)
	noise := func() string {
		text := make([]byte, 200<<10)
		for i := range text {
			text[i] = byte(rand.IntN(256))
		}
		return string(text)
	}
	lib := w.createAt("acme/lib", map[string]string{"large": noise(), "small": "1"})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, map[string]string{"sub": lib}, map[string]string{"sub": meter.URL("acme/lib")}, nil)
	fetched := func(edit gitserver.Edit) int64 {
		t.Helper()
		lib := w.commitAt("acme/lib", edit)
		w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": lib}})
		meter.Take()
		w.syncParts(events.SubmodulesRequired)
		return meter.Take()
	}
	w.syncParts(events.SubmodulesRequired)
	if n := meter.Take(); n < 200<<10 {
		t.Errorf("fetched %d bytes at first", n)
	}
	if n := fetched(gitserver.Edit{Write: map[string]string{"small": "2"}}); n > 20<<10 {
		t.Errorf("fetched %d bytes of a small change", n)
	}
	w.mustBeAsCloned("a small change")
	for range testenv.Form(1, 12) {
		fetched(gitserver.Edit{Write: map[string]string{"large": noise()}})
		w.gc(true)
		w.gc(true)
		for _, part := range w.parts() {
			if size := testenv.Must(spaceBelow(t.Context(), part))(t); size > 2*(201<<10)+minLoose+(201<<10) {
				t.Errorf("the store of a submodule of 200 KiB has %d bytes", size)
			}
		}
	}
	w.mustBeAsCloned("many large changes")
}

// TestSubmodulesGoWithTheirRepository removes or moves a repository. Another one at its path must not find its submodules, which it
// might name without having access to them.
func TestSubmodulesGoWithTheirRepository(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(w *world){
		"removed": func(w *world) {
			req := w.removal()
			req.Force = true
			testenv.Must(w.volume.Remove(t.Context(), req))(t)
		},
		"moved": func(w *world) {
			w.rename(widgets, gadgets)
			testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
		},
		"removed after another had moved": func(w *world) {
			w.rename(widgets, gadgets)
			testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
			testenv.Must(w.git.Create(t.Context(), widgets, nil))(t)
			w.withParts(widgets, map[string]string{"sub": w.git.Head("acme/lib", "refs/heads/main")}, map[string]string{"sub": w.git.URL("acme/lib")}, nil)
			w.syncParts(events.SubmodulesRequired)
			req := w.removal()
			req.Force = true
			testenv.Must(w.volume.Remove(t.Context(), req))(t)
			testenv.Must(0, w.git.Delete(widgets))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			lib := w.simple()
			urls := map[string]string{"sub": w.git.URL("acme/lib")}
			w.withParts(widgets, map[string]string{"sub": lib}, urls, nil)
			w.syncParts(events.SubmodulesRequired)
			leave(w)
			if left := w.parts(); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
			if name != "removed" {
				if report := w.verify(false); report.Found > 0 {
					t.Errorf("the trees that are still published at the old path: %+v", report)
				}
				w.mustVerifyAt(gadgets)
			}
			w.git.RequireAuth("acme/lib", "u", "p")
			testenv.Must(w.git.Create(t.Context(), widgets, map[string]string{"other": "1"}))(t)
			w.withParts(widgets, map[string]string{"sub": lib}, urls, nil)
			_, err := w.trySyncParts(events.SubmodulesRequired)
			testenv.MustFail(t, err, events.ClassAuth, events.Permanent)
		})
	}
}

// TestDamagedGitmodulesOfASubmodule damages the .gitmodules in the store of a submodule that a push moves.
func TestDamagedGitmodulesOfASubmodule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	leaf := w.createAt("acme/leaf", map[string]string{"f": "1"})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), "acme/lib"))(t)
	lib := w.withParts("acme/lib", map[string]string{"in": leaf}, map[string]string{"in": "../leaf.git"}, nil)
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, map[string]string{"sub": lib}, map[string]string{"sub": "../lib.git"}, map[string]string{"a": "1"})
	w.syncParts(events.SubmodulesRequired)

	part := w.parts()[slices.IndexFunc(w.parts(), func(path string) bool { return strings.HasSuffix(path, lib) })]
	blob := object.ParseID(strings.TrimSpace(testenv.Must(w.git.Git(t.Context(), "acme/lib", "", "rev-parse", lib+":.gitmodules"))(t)))
	isDamaged := func() bool {
		objects := object.Open(part)
		defer objects.Close()
		if _, err := checkout.NewPlan(t.Context(), objects, object.ParseID(lib), nil, 10); err != nil {
			return false // more than that is damaged
		}
		_, _, err := objects.SmallBlob(blob, 1000)
		return err != nil
	}
	pack := one(t, part, "objects/pack/*.pack")
	for at := 0.0; !isDamaged(); at += 0.01 {
		if at > 0 {
			flipBit(t, pack, at-0.01) // back
		}
		flipBit(t, pack, at)
	}
	w.commit(gitserver.Main, gitserver.Edit{Delete: []string{"sub"}})
	w.withParts(widgets, map[string]string{"moved": lib}, map[string]string{"moved": "../lib.git"}, nil)
	w.syncParts(events.SubmodulesRequired)
	w.mustBeAsCloned("fetched again")
}
