package volume

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/lfs"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func (w *world) trySyncPartsLFS(mode events.Submodules, selection lfs.Selection) (SyncResult, error) {
	w.t.Helper()
	req := w.requestParts(mode)
	req.LFS = selection
	return w.volume.Sync(w.t.Context(), req)
}

func (w *world) syncPartsLFS(selection lfs.Selection) SyncResult {
	w.t.Helper()
	return testenv.Must(w.trySyncPartsLFS(events.SubmodulesRequired, selection))(w.t)
}

// mustBeAsWithLFS compares the published tree with git clone --recurse-submodules and git-lfs.
func (w *world) mustBeAsWithLFS(what string) {
	w.t.Helper()
	if _, err := exec.LookPath("git-lfs"); err != nil {
		w.t.Skip("git-lfs is not installed")
	}
	dir := w.t.TempDir()
	testenv.Must(gitserver.Git(w.t.Context(), dir, "", "-c", "filter.lfs.smudge=git-lfs smudge -- %f", "-c", "filter.lfs.clean=git-lfs clean -- %f",
		"-c", "filter.lfs.required=true", "clone", "-q", "--recurse-submodules", w.git.URL(widgets), "."))(w.t)
	want, got := treeWithModes(w.t, dir), treeWithModes(w.t, w.path(widgets))
	for path := range maps.Keys(want) {
		if got[path] != want[path] {
			w.t.Errorf("%s: %q is %.60q, git has %.60q", what, path, got[path], want[path])
		}
	}
	if len(got) != len(want) {
		w.t.Errorf("%s: %d files, git has %d", what, len(got), len(want))
	}
	w.mustBeSound(widgets, w.git.Head(widgets, "refs/heads/main"))
	if out := w.gitIn(widgets, "status", "--porcelain", "--ignore-submodules=none", "--untracked-files=all"); out != "" {
		w.t.Errorf("%s: git status: %s", what, out)
	}
	w.mustVerify()
}

// TestLFSInSubmodulesIsAsWithGit compares trees with git's and git-lfs', built and prepared, while files enter and leave LFS.
func TestLFSInSubmodulesIsAsWithGit(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepared=%v", prepared), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			own, lib, leaf := w.git.LFS(widgets), w.git.LFS("acme/lib"), w.git.LFS("acme/leaf")
			inLeaf := w.createAt("acme/leaf", map[string]string{".gitattributes": lfsAttributes, "x.bin": leaf.Put("in the leaf"), "same.bin": leaf.Put("same")})
			w.createAt("acme/lib", map[string]string{
				".gitattributes": lfsAttributes, ".lfsconfig": "[lfs]\n\tfetchexclude = raw\n", "a.bin": lib.Put("in the library"), "raw/b.bin": lib.Put("excluded"),
				"c.dat": lib.Put("not in LFS"), "same.bin": lib.Put("same"),
			})
			inLib := func(edit gitserver.Edit) map[string]string {
				return map[string]string{"sub": w.commitAt("acme/lib", edit)}
			}
			first := inLib(gitserver.Edit{
				Write: map[string]string{".gitmodules": gitmodules(map[string]string{"deep/leaf": "../leaf.git"})}, Submodule: map[string]string{"deep/leaf": inLeaf},
				Exec: map[string]string{"run.bin": lib.Put("in the library")},
			})
			testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
			urls := map[string]string{"sub": "../lib.git"}
			modules := func() map[string]string { return map[string]string{".gitmodules": gitmodules(urls)} }
			check := func(what string, edit gitserver.Edit) {
				t.Helper()
				if prepared && w.published() != "" {
					w.prepare()
				}
				w.commitAt(widgets, edit)
				w.syncPartsLFS(allLFS)
				w.mustBeAsWithLFS(what)
			}
			check("its own", gitserver.Edit{Write: map[string]string{
				".gitattributes": "*.dat filter=lfs\nsub/** filter=lfs\n", "own.dat": own.Put("own"), "own.bin": own.Put("not in LFS"), "sub/c.dat": own.Put("below sub"),
			}})
			write := modules()
			write["x"] = "1"
			check("a submodule instead of a folder", gitserver.Edit{Delete: []string{"sub"}, Write: write, Submodule: first})
			check("another push", gitserver.Edit{Write: map[string]string{"own.dat": own.Put("own, changed")}})
			check("a pointer changed", gitserver.Edit{Submodule: inLib(gitserver.Edit{Write: map[string]string{"a.bin": lib.Put("changed")}})})
			check("other attributes", gitserver.Edit{Submodule: inLib(gitserver.Edit{Write: map[string]string{".gitattributes": "*.dat filter=lfs\nrun.bin filter=lfs\n"}})})
			check("another .lfsconfig", gitserver.Edit{Submodule: inLib(gitserver.Edit{Write: map[string]string{".gitattributes": lfsAttributes, ".lfsconfig": "[lfs]\n\tfetchinclude = raw\n"}})})
			check("its own attributes", gitserver.Edit{Write: map[string]string{".gitattributes": "*.bin filter=lfs\n"}, Submodule: inLib(gitserver.Edit{Delete: []string{".lfsconfig"}})})
			urls["twice"] = "../lib.git"
			write = modules()
			check("twice", gitserver.Edit{Write: write, Submodule: map[string]string{"twice": first["sub"]}})
			delete(urls, "sub")
			check("its files instead", gitserver.Edit{Delete: []string{"sub"}, Write: modules()})
			if got := len(w.lfsObjects()); got == 0 {
				t.Errorf("%d objects", got)
			}
			testenv.Must(0, w.git.Delete("acme/lib"))(t)
			w.push(map[string]string{"x": "2"})
			w.syncPartsLFS(allLFS) // what is unchanged needs no server
		})
	}
}

// TestLFSOfSubmodules has a submodule with files in LFS, at its own server.
func TestLFSOfSubmodules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own, server := w.git.LFS(widgets), w.git.LFS("acme/lib")
	one, two, both := server.Put("one"), server.Put("two"), own.Put("in both")
	server.Put("in both")
	lib := w.createAt("acme/lib", map[string]string{".gitattributes": lfsAttributes, "a.bin": one, "dir/b.bin": two, "c.bin": both})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	urls := map[string]string{"sub": "../lib.git"}
	w.withParts(widgets, map[string]string{"sub": lib}, urls, map[string]string{".gitattributes": lfsAttributes, "c.bin": both})
	want := map[string]string{
		".gitattributes": lfsAttributes, ".gitmodules": gitmodules(urls), "sub/.gitattributes": lfsAttributes, "c.bin": "in both",
		"sub/a.bin": "one", "sub/dir/b.bin": "two", "sub/c.bin": "in both",
	}
	for _, step := range []struct {
		selection lfs.Selection
		differ    map[string]string
		gets      int
	}{
		{allLFS, nil, 2},
		{lfs.Selection{{Include: []string{"sub/dir/**", "c.bin"}}}, map[string]string{"sub/a.bin": one, "sub/c.bin": both}, 0},
		{lfs.Selection{{Exclude: []string{"*.bin"}}}, map[string]string{"c.bin": both}, 0},
		{nil, map[string]string{"c.bin": both, "sub/a.bin": one, "sub/dir/b.bin": two, "sub/c.bin": both}, 0},
		{allLFS, nil, 0},
	} {
		w.syncPartsLFS(step.selection)
		expected := maps.Clone(want)
		maps.Copy(expected, step.differ)
		w.mustRead(widgets, expected)
		w.mustVerify()
		if _, gets := server.Requests(); len(gets) != step.gets {
			t.Errorf("%v: downloaded %q", step.selection, gets)
		}
	}
	if got := w.lfsObjects(); len(got) != 3 {
		t.Errorf("objects %q, want each stored once", got)
	}
	w.prepare()
	changed := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"a.bin": server.Put("changed")}})
	w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": changed}})
	w.syncPartsLFS(allLFS)
	want["sub/a.bin"] = "changed"
	w.mustRead(widgets, want)
	if batches, gets := server.Requests(); len(gets) != 1 || !slices.Equal(batches, []int{1}) {
		t.Errorf("downloaded %q in batches of %v, want one object", gets, batches)
	}
	if batches, _ := own.Requests(); !slices.Equal(batches, []int{1}) {
		t.Errorf("the repository's own server was asked for batches of %v", batches)
	}
	mustBeTidy(t, w)
}

// TestLFSOfASubmoduleIsMissing has an LFS server of a submodule that lacks an object.
func TestLFSOfASubmoduleIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS("acme/lib")
	_, oid := gitserver.LFSPointer("missing")
	pointer, _ := gitserver.LFSPointer("missing")
	leaf := w.createAt("acme/leaf", map[string]string{"f": "1"})
	w.createAt("acme/lib", map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("one"), "dir/b.bin": pointer})
	lib := w.withParts("acme/lib", map[string]string{"in": leaf}, map[string]string{"in": "../leaf.git"}, nil)
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, map[string]string{"sub": lib, "leaf": leaf}, map[string]string{"sub": "../lib.git", "leaf": "../leaf.git"}, map[string]string{"a": "1"})
	_, err := w.trySyncPartsLFS(events.SubmodulesRequired, allLFS)
	testenv.MustFail(t, err, events.ClassNotFound, events.Permanent)
	if text := err.Error(); !strings.Contains(text, `submodule "sub": fetch LFS objects`) || !strings.Contains(text, oid) || !strings.Contains(text, `"sub/dir/b.bin"`) {
		t.Errorf("%v, want it to name the submodule, the object and the path", err)
	}
	if w.published() != "" {
		t.Error("a tree is published")
	}
	for range 2 {
		res := testenv.Must(w.trySyncPartsLFS(events.SubmodulesBestEffort, allLFS))(t)
		if len(res.Missing) != 1 || res.Missing[0].Path != "sub" || res.Missing[0].Class != events.ClassNotFound || !strings.Contains(res.Missing[0].Error, oid) {
			t.Errorf("missing %+v", res.Missing)
		}
		if got := treeWithModes(t, w.path(widgets)); got["sub"] != "an empty folder" || got["leaf/f"] != "false 1" {
			t.Errorf("published %q", got)
		}
		w.mustVerify()
	}
	if res := testenv.Must(w.trySyncPartsLFS(events.SubmodulesBestEffort, allLFS))(t); res.Published {
		t.Errorf("published the same tree again: %+v", res)
	}
	server.Set(gitserver.LFSHooks{Batch: func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	}})
	if res := testenv.Must(w.trySyncPartsLFS(events.SubmodulesBestEffort, allLFS))(t); len(res.Missing) != 1 || res.Missing[0].Class != events.ClassServer {
		t.Errorf("missing %+v", res.Missing)
	}
	server.Set(gitserver.LFSHooks{})
	server.Put("missing")
	if res := testenv.Must(w.trySyncPartsLFS(events.SubmodulesBestEffort, allLFS))(t); len(res.Missing) > 0 || !res.Published {
		t.Errorf("%+v", res)
	}
	if got := readTree(t, w.path(widgets)); got["sub/dir/b.bin"] != "missing" || got["sub/in/f"] != "1" {
		t.Errorf("published %q", got)
	}
}

// TestAlteredLFSFileOfASubmodule alters a file of a submodule, and its object with it.
func TestAlteredLFSFileOfASubmodule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS("acme/lib")
	lib := w.createAt("acme/lib", map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content")})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, map[string]string{"sub": lib}, map[string]string{"sub": "../lib.git"}, map[string]string{"a": "1"})
	w.syncPartsLFS(allLFS)
	w.mustVerify()
	flipBit(t, w.path(widgets, "sub/a.bin"), 0.5)
	if report := w.verify(true); report.Found != 1 || !strings.HasSuffix(report.Problems[0].Path, "sub/a.bin") {
		t.Errorf("report %+v", report)
	}
	w.syncPartsLFS(allLFS)
	if content := string(testenv.Must(os.ReadFile(w.path(widgets, "sub/a.bin")))(t)); content != "content" {
		t.Errorf("published %q", content)
	}
	w.mustVerify()
}
