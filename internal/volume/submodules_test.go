package volume

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func (w *world) requestParts(mode events.Submodules) SyncRequest {
	req := w.request(gitserver.Main)
	req.Submodules = mode
	return req
}

func (w *world) trySyncParts(mode events.Submodules) (SyncResult, error) {
	w.t.Helper()
	return w.volume.Sync(w.t.Context(), w.requestParts(mode))
}

func (w *world) syncParts(mode events.Submodules) SyncResult {
	w.t.Helper()
	return testenv.Must(w.trySyncParts(mode))(w.t)
}

// createAt makes a repository with these files.
func (w *world) createAt(repo string, files map[string]string) string {
	w.t.Helper()
	return testenv.Must(w.git.Create(w.t.Context(), repo, files))(w.t)
}

// commitAt commits to main of a repository.
func (w *world) commitAt(repo string, edit gitserver.Edit) string {
	w.t.Helper()
	return testenv.Must(w.git.Commit(w.t.Context(), repo, gitserver.Main, edit))(w.t)
}

// gitmodules returns a .gitmodules file with URLs by path.
func gitmodules(urls map[string]string) (content string) {
	for _, path := range slices.Sorted(maps.Keys(urls)) {
		content += fmt.Sprintf("[submodule \"%s\"]\n\tpath = %s\n\turl = %s\n", path, path, urls[path])
	}
	return content
}

// withParts commits submodules, given as commits by path, with URLs by path, and files.
func (w *world) withParts(repo string, commits, urls, files map[string]string) string {
	w.t.Helper()
	write := map[string]string{".gitmodules": gitmodules(urls)}
	maps.Copy(write, files)
	return w.commitAt(repo, gitserver.Edit{Write: write, Submodule: commits})
}

// simple makes acme/widgets with the submodule sub of acme/lib, and returns the commit of that.
func (w *world) simple() (lib string) {
	w.t.Helper()
	lib = w.createAt("acme/lib", map[string]string{"l": "library", "dir/m": "more"})
	testenv.Must(0, w.git.CreateEmpty(w.t.Context(), widgets))(w.t)
	w.withParts(widgets, map[string]string{"sub": lib}, map[string]string{"sub": "../lib.git"}, map[string]string{"a": "1"})
	return lib
}

// treeWithModes reads a tree without .git at any depth: files with their mode and content, links, and empty folders.
func treeWithModes(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	root = testenv.Must(filepath.EvalSymlinks(root))(t)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		switch {
		case err != nil:
			return err
		case d.Name() == ".git" && d.IsDir():
			return fs.SkipDir
		case d.Name() == ".git":
			return nil
		case d.IsDir():
			entries, err := os.ReadDir(path)
			if len(slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Name() == ".git" })) == 0 {
				found[name] = "an empty folder"
			}
			return err
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			found[name] = "→ " + target
			return err
		}
		content, err := os.ReadFile(path)
		info, statErr := d.Info()
		if err == nil && statErr == nil {
			found[name] = fmt.Sprintf("%v %s", info.Mode()&0o100 != 0, content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// mustBeAsCloned compares the published tree with git clone --recurse-submodules, and checks it with git and with Verify.
func (w *world) mustBeAsCloned(what string) {
	w.t.Helper()
	dir := w.t.TempDir()
	_, err := gitserver.Git(w.t.Context(), dir, "", "clone", "-q", "--recurse-submodules", w.git.URL(widgets), ".")
	testenv.Must(0, err)(w.t)
	want, got := treeWithModes(w.t, dir), treeWithModes(w.t, w.path(widgets))
	for path := range want {
		if got[path] != want[path] {
			w.t.Errorf("%s: %q is %.60q, git has %.60q", what, path, got[path], want[path])
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			w.t.Errorf("%s: %q is %.60q, git does not have it", what, path, got[path])
		}
	}
	w.mustBeSound(widgets, w.git.Head(widgets, "refs/heads/main"))
	if out := w.gitIn(widgets, "status", "--porcelain", "--ignore-submodules=none", "--untracked-files=all"); out != "" {
		w.t.Errorf("%s: git status: %s", what, out)
	}
	w.mustVerify()
}

func (w *world) uploads(repo string) int { return w.git.Stats(repo).UploadPacks }

// TestSubmodulesAreAsAfterGitClone compares trees with git's, of both object formats, built and prepared.
func TestSubmodulesAreAsAfterGitClone(t *testing.T) {
	t.Parallel()
	for i, format := range []string{"sha1", "sha256"} {
		for _, prepared := range testenv.Form([]bool{i == 0}, []bool{false, true}) {
			t.Run(fmt.Sprintf("%s/prepared=%v", format, prepared), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				create := func(repo string, files map[string]string) string {
					return testenv.Must(w.git.CreateAs(t.Context(), format, repo, files))(t)
				}
				deep := create("deep/er/leaf", map[string]string{"leaf": "1"})
				create("acme/lib", map[string]string{"l": "1", "sub-x/f": "x"})
				lib := w.commitAt("acme/lib", gitserver.Edit{
					Write: map[string]string{".gitmodules": gitmodules(map[string]string{"in/leaf": "../../deep/er/leaf.git"}), "empty": ""},
					Exec:  map[string]string{"run": "#!/bin/sh\n"}, Link: map[string]string{"link": "../a"}, Submodule: map[string]string{"in/leaf": deep},
				})
				create(widgets, map[string]string{"a": "1", "sub-x": "beside", "sub.d/f": "beside", "sub0": "after"})
				check := func(what string, edit gitserver.Edit) (res SyncResult, fetches int) {
					t.Helper()
					if prepared && w.published() != "" {
						w.prepare()
					}
					w.commitAt(widgets, edit)
					before := w.uploads("acme/lib") + w.uploads("deep/er/leaf")
					res = w.syncParts(events.SubmodulesRequired)
					fetches = w.uploads("acme/lib") + w.uploads("deep/er/leaf") - before
					w.mustBeAsCloned(what)
					return res, fetches
				}
				urls := map[string]string{"sub": "../lib.git"}
				modules := func() map[string]string { return map[string]string{".gitmodules": gitmodules(urls)} }
				check("none", gitserver.Edit{Write: map[string]string{"b": "1"}})
				res, fetches := check("added", gitserver.Edit{Write: modules(), Submodule: map[string]string{"sub": lib}})
				if got := changed(res.Files); !slices.Equal(got, []string{"added .gitmodules", "added sub"}) || fetches != 2 {
					t.Errorf("changed %q with %d fetches", got, fetches)
				}
				if _, fetches = check("another push", gitserver.Edit{Write: map[string]string{"a": "2"}}); fetches > 0 {
					t.Errorf("%d fetches of submodules for a push that changes none", fetches)
				}
				next := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "2", "new/f": "new"}, Delete: []string{"sub-x", "empty"}})
				res, fetches = check("changed", gitserver.Edit{Submodule: map[string]string{"sub": next}})
				if got := changed(res.Files); !slices.Equal(got, []string{"modified sub"}) || fetches != 1 {
					t.Errorf("changed %q with %d fetches", got, fetches)
				}
				urls["moved/to/sub"] = urls["sub"]
				delete(urls, "sub")
				check("moved", gitserver.Edit{Delete: []string{"sub"}, Write: modules(), Submodule: map[string]string{"moved/to/sub": next}})
				urls["again"] = w.git.URL("acme/lib")
				check("twice, by another URL", gitserver.Edit{Write: modules(), Submodule: map[string]string{"again": lib}})
				check("its files instead", gitserver.Edit{Delete: []string{"again"}, Write: map[string]string{"again/l": "1", "again/own": "own"}})
				check("a submodule instead", gitserver.Edit{Delete: []string{"again"}, Submodule: map[string]string{"again": lib}})
				check("a file instead", gitserver.Edit{Delete: []string{"again"}, Write: map[string]string{"again": "file"}})
				check("a link instead", gitserver.Edit{Delete: []string{"again"}, Link: map[string]string{"again": "moved"}})
				check("a submodule instead of a link", gitserver.Edit{Delete: []string{"again"}, Submodule: map[string]string{"again": next}})
				delete(urls, "again")
				delete(urls, "moved/to/sub")
				check("removed", gitserver.Edit{Delete: []string{"again", "moved"}, Write: modules()})
				urls["sub"] = "../lib.git"
				check("back", gitserver.Edit{Write: modules(), Submodule: map[string]string{"sub": lib}})
				check("nothing but submodules", gitserver.Edit{Delete: []string{"a", "b", "sub-x", "sub.d", "sub0"}})
			})
		}
	}
}

// TestRandomSubmodules compares random changes of three repositories, each of which has the next as a submodule, with git.
func TestRandomSubmodules(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	repos := []string{widgets, "acme/mid", "acme/leaf"}
	for _, repo := range repos {
		w.createAt(repo, map[string]string{"f": "0"})
	}
	paths := []string{"p", "q", "p/q", "p-x", "d/p"}
	for step := range testenv.Soak(15, 60) {
		for i := len(repos) - 1; i >= 0; i-- {
			edit := gitserver.Edit{Write: map[string]string{}, Submodule: map[string]string{}, Delete: slices.Clone(paths)}
			edit.Delete = append(edit.Delete, "d")
			urls := map[string]string{}
			for _, path := range paths {
				switch random.IntN(4) {
				case 0:
					edit.Write[path+"/f"] = fmt.Sprint(random.IntN(3))
				case 1:
					edit.Write[path] = fmt.Sprint(random.IntN(3))
				case 2:
					if i+1 < len(repos) {
						commits := strings.Fields(testenv.Must(w.git.Git(t.Context(), repos[i+1], "", "rev-list", "--all"))(t))
						edit.Submodule[path] = commits[random.IntN(len(commits))]
						urls[path] = "../" + strings.TrimPrefix(repos[i+1], "acme/") + ".git"
					}
				}
			}
			if _, ok := edit.Submodule["p"]; ok || edit.Write["p"] != "" { // nothing can be below it
				delete(edit.Write, "p/q")
				delete(edit.Write, "p/q/f")
				delete(edit.Submodule, "p/q")
				delete(urls, "p/q")
			}
			edit.Write[".gitmodules"], edit.Write["n"] = gitmodules(urls), fmt.Sprint(random.IntN(5))
			w.commitAt(repos[i], edit)
		}
		if w.published() != "" && random.IntN(2) == 0 {
			w.prepare()
		}
		if random.IntN(5) == 0 {
			w.gc(random.IntN(2) == 0)
		}
		w.syncParts(events.SubmodulesRequired)
		w.mustBeAsCloned(fmt.Sprint("step ", step))
	}
	mustBeTidy(t, w)
}

func TestRequiredSubmodulesThatCannotBeHad(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		urls   map[string]string
		commit string // "" for one that the remote has
		do     func(w *world)
		class  events.Class
		kind   events.Disposition
		text   string
	}{
		"no such repository":   {urls: map[string]string{"sub": "../none.git"}, class: events.ClassNotFound, kind: events.Permanent},
		"no such commit":       {urls: map[string]string{"sub": "../lib.git"}, commit: anID("ab"), class: events.ClassNotFound, kind: events.Retryable, text: "does not send commit"},
		"no URL":               {urls: map[string]string{"sub": ""}, class: events.ClassConfig, kind: events.Permanent, text: "names no URL"},
		"a local path":         {urls: map[string]string{"sub": "/srv/lib"}, class: events.ClassConfig, kind: events.Permanent, text: "scheme"},
		"a file":               {urls: map[string]string{"sub": "file:///srv/lib"}, class: events.ClassConfig, kind: events.Permanent, text: "scheme"},
		"a command":            {urls: map[string]string{"sub": "ext::sh -c touch% /tmp/x"}, class: events.ClassConfig, kind: events.Permanent},
		"a password":           {urls: map[string]string{"sub": "https://u:hunter2@host.example/x"}, class: events.ClassConfig, kind: events.Permanent, text: "contains a password"},
		"too many ..":          {urls: map[string]string{"sub": "../../../../../../../../x"}, class: events.ClassConfig, kind: events.Permanent, text: "../"},
		"a private network":    {urls: map[string]string{"sub": "http://127.0.0.1:1/acme/lib"}, class: events.ClassConfig, kind: events.Permanent, text: "private network"},
		"metadata":             {urls: map[string]string{"sub": "http://169.254.169.254/acme/lib"}, class: events.ClassConfig, kind: events.Permanent, text: "never allowed"},
		"SSH without a key":    {urls: map[string]string{"sub": "git@127.0.0.1:acme/lib.git"}, class: events.ClassAuth, kind: events.Permanent, text: "sshKey"},
		"it needs credentials": {urls: map[string]string{"sub": "../lib.git"}, do: func(w *world) { w.git.RequireAuth("acme/lib", "u", "p") }, class: events.ClassAuth, kind: events.Permanent},
		"a failing server":     {urls: map[string]string{"sub": "../lib.git"}, do: func(w *world) { w.git.Answer("acme/lib", 500) }, class: events.ClassServer, kind: events.Retryable},
		"a file that is none":  {urls: map[string]string{"sub": "x\n[submodule"}, class: events.ClassConfig, kind: events.Permanent, text: "configuration syntax"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			lib := w.createAt("acme/lib", map[string]string{"l": "1"})
			first := w.create(map[string]string{"a": "1"})
			w.syncParts(events.SubmodulesRequired)
			if tc.commit == "" {
				tc.commit = lib
			}
			second := w.withParts(widgets, map[string]string{"sub": tc.commit}, tc.urls, map[string]string{"a": "2"})
			if tc.do != nil {
				tc.do(w)
			}

			_, err := w.trySyncParts(events.SubmodulesRequired)
			testenv.MustFail(t, err, tc.class, tc.kind)
			for _, text := range []string{`submodule "sub"`, "--submodules best-effort", tc.text} {
				if err != nil && !strings.Contains(err.Error(), text) {
					t.Errorf("%v does not say %q", err, text)
				}
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a password is in %v", err)
			}
			w.mustRead(widgets, map[string]string{"a": "1"})
			w.mustBeSound(widgets, first)

			res := w.syncParts(events.SubmodulesBestEffort)
			if w.published() != second {
				t.Errorf("published %s", w.published())
			}
			if len(res.Missing) != 1 || res.Missing[0].Path != "sub" || res.Missing[0].Class != tc.class || strings.Contains(res.Missing[0].Error, "\n") {
				t.Errorf("missing %+v, want sub with class %s", res.Missing, tc.class)
			}
			if got := treeWithModes(t, w.path(widgets))["sub"]; got != "an empty folder" {
				t.Errorf("sub is %q", got)
			}
			w.mustVerify()
			tree := res.Tree
			if res = w.syncParts(events.SubmodulesBestEffort); res.Published || res.Tree != tree || len(res.Missing) != 1 {
				t.Errorf("published another tree of the same files: %+v", res)
			}
		})
	}
}

// TestMissingSubmodulesAreTriedAgain makes what was missing available.
func TestMissingSubmodulesAreTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.simple()
	w.git.Answer("acme/lib", 500)
	if res := w.syncParts(events.SubmodulesBestEffort); len(res.Missing) != 1 {
		t.Errorf("missing %+v", res.Missing)
	}
	published, _, err := w.volume.Published(repoPath(t, widgets))
	main := testenv.Must(events.ParseRef("refs/heads/main"))(t)
	if err != nil || published.Submodules[main] != events.SubmodulesBestEffort || !published.Incomplete[main] {
		t.Errorf("published %+v, %v", published, err)
	}
	w.git.Answer("acme/lib", 0)
	if res := w.syncParts(events.SubmodulesBestEffort); len(res.Missing) > 0 || !res.Published {
		t.Errorf("%+v", res)
	}
	w.mustBeAsCloned("available")
	if published, _, _ = w.volume.Published(repoPath(t, widgets)); published.Incomplete[main] {
		t.Error("incomplete")
	}
}

func TestModesOfSubmodules(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.simple()
	res := w.syncParts(events.SubmodulesOff)
	if got := treeWithModes(t, w.path(widgets))["sub"]; got != "an empty folder" || w.uploads("acme/lib") > 0 {
		t.Errorf("sub is %q after %d fetches", got, w.uploads("acme/lib"))
	}
	for _, mode := range []events.Submodules{events.SubmodulesRequired, events.SubmodulesBestEffort, events.SubmodulesRequired} {
		w.prepare()
		if res = w.syncParts(mode); !res.Published || len(res.Files) > 0 {
			t.Errorf("%s: %+v", mode, res)
		}
		w.mustBeAsCloned(string(mode))
		if res := w.syncParts(mode); res.Published {
			t.Errorf("%s: published again", mode)
		}
	}
	w.prepare()
	w.push(map[string]string{"a": "2"})
	w.syncParts(events.SubmodulesOff)
	if got := treeWithModes(t, w.path(widgets)); got["sub"] != "an empty folder" || len(got) != 3 {
		t.Errorf("off again: %q", got)
	}
	w.mustVerify()
	w.push(map[string]string{"a": "3"})
	w.syncParts(events.SubmodulesRequired)
	w.mustBeAsCloned("on again")
}
