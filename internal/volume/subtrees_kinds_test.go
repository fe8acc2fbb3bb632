package volume

import (
	"os"
	"slices"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// Views have the LFS content of the whole tree, which may come and go without a change of their blobs.
func TestViewsWithLFS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	size := 128 // bytes: then a pointer has as many
	first, second := server.Put(string(make([]byte, size))), server.Put("other content")
	if len(first) != size {
		t.Fatalf("the pointer has %d bytes", len(first))
	}
	w.create(map[string]string{".gitattributes": "", "art/a.bin": first, "art/b.txt": "text", "code/x": "1"})
	views := map[string][]string{"art": {"art"}, "code": {"code"}}
	want := func(content string) {
		t.Helper()
		w.mustRead(SubtreePath(widgets, "argo", "art"), map[string]string{"art/a.bin": content, "art/b.txt": "text"})
		w.mustVerify()
	}
	publish := func() {
		t.Helper()
		res := w.syncLFS(allLFS)
		res.Path = widgets
		w.publishViews(res, views)
	}
	publish()
	want(first)
	w.push(map[string]string{".gitattributes": lfsAttributes})
	publish()
	want(string(make([]byte, size)))
	code := w.viewTrees(widgets, "code")["code"]
	w.push(map[string]string{"art/a.bin": second})
	publish()
	want("other content")
	if now := w.viewTrees(widgets, "code")["code"]; now != code {
		t.Errorf("an unchanged view has %s, then %s", code, now)
	}
	res := testenv.Must(w.volume.Sync(t.Context(), w.request("")))(t)
	w.publishViews(res, views)
	want(second)
	publish()
	want("other content")
}

// A submodule belongs to the views that select it, as a whole.
func TestViewsWithSubmodules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lib := w.simple()
	views := map[string][]string{"sub": {"sub"}, "letters": {"**/l", "**/a"}, "none": {"sub/l"}, "all": {"**"}}
	want := func(when string, files map[string]map[string]string) {
		t.Helper()
		for name, want := range files {
			t.Run(when+"/"+name, func(t *testing.T) {
				mustBeEqual(t, name, readTree(t, w.path(SubtreePath(widgets, "argo", name))), want)
			})
		}
		w.mustVerify()
	}
	publish := func(mode events.Submodules) {
		t.Helper()
		res := w.syncParts(mode)
		res.Path = widgets
		w.publishViews(res, views)
	}
	modules := gitmodules(map[string]string{"sub": "../lib.git"})
	publish(events.SubmodulesRequired)
	want("required", map[string]map[string]string{
		"sub": {"sub/l": "library", "sub/dir/m": "more"}, "letters": {"a": "1"}, "none": {},
		"all": {"sub/l": "library", "sub/dir/m": "more", "a": "1", ".gitmodules": modules},
	})
	next := w.commitAt("acme/lib", gitserver.Edit{Parent: lib, Write: map[string]string{"l": "newer"}})
	w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": next}})
	publish(events.SubmodulesRequired)
	want("pushed", map[string]map[string]string{
		"sub": {"sub/l": "newer", "sub/dir/m": "more"}, "letters": {"a": "1"}, "none": {},
	})
	publish("")
	want("off", map[string]map[string]string{"sub": {}, "all": {"a": "1", ".gitmodules": modules}})
	if info, err := os.Stat(w.path(SubtreePath(widgets, "argo", "sub"), "sub")); err != nil || !info.IsDir() {
		t.Errorf("the folder of the submodule: %v", err)
	}
}

func TestViewsWithLFSInSubmodules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS("acme/lib")
	commit := w.createAt("acme/lib", map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("one")})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, map[string]string{"sub": commit}, map[string]string{"sub": "../lib.git"}, map[string]string{"x": "1"})
	views := map[string][]string{"art": {"sub"}}
	for _, content := range []string{"one", "two"} {
		if content != "one" {
			commit = w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"a.bin": server.Put(content)}})
			w.commit(gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": commit}})
		}
		res := w.syncPartsLFS(allLFS)
		res.Path = widgets
		w.publishViews(res, views)
		mustBeEqual(t, content, readTree(t, w.path(SubtreePath(widgets, "argo", "art"))), map[string]string{"sub/.gitattributes": lfsAttributes, "sub/a.bin": content})
		w.mustVerify()
	}
}

// Links that lead out of the whole tree are omitted from views, too, also if another part of the tree makes them do so.
func TestViewsWithoutOutsideLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"v/a": "1", "deep/er/f": "1"})
	w.commit(gitserver.Main, gitserver.Edit{Link: map[string]string{"v/out": "../../x", "v/via": "../to/../../f", "to": "deep/er"}})
	w.volume = w.open(w.volume.Root(), Config{Links: checkout.LinksSkip})
	views := map[string][]string{"v": {"v"}}
	w.publishViews(w.sync(""), views)
	w.mustRead(SubtreePath(widgets, "argo", "v"), readBelow(t, w.path(widgets), "v/"))
	w.commit(gitserver.Main, gitserver.Edit{Link: map[string]string{"to": "deep"}})
	w.publishViews(w.sync(""), views)
	w.mustRead(SubtreePath(widgets, "argo", "v"), readBelow(t, w.path(widgets), "v/"))
	w.mustVerify()
	w.volume = w.open(w.volume.Root(), Config{})
	w.publishViews(w.sync(""), views) // still the tree without links
	w.push(map[string]string{"v/b": "1"})
	w.publishViews(w.sync(""), views)
	w.mustRead(SubtreePath(widgets, "argo", "v"), readBelow(t, w.path(widgets), "v/"))
}

// readBelow reads the files of a tree below a folder.
func readBelow(t *testing.T, root, folder string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for name, content := range readTree(t, root) {
		if len(name) > len(folder) && name[:len(folder)] == folder {
			files[name] = content
		}
	}
	return files
}

// A repository that moves keeps its views at its old path for the grace. Those at its new path are published by its next sync.
func TestMovedViews(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1", "web/a": "1"})
	w.commit("dev", gitserver.Edit{Parent: w.git.Head(widgets, "refs/heads/main"), Write: map[string]string{"api/a": "2"}})
	views := map[string][]string{"api": {"api"}, "web": {"web"}}
	w.publishViews(w.sync(""), views)
	w.publishViews(w.sync("dev"), views)
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	for _, ref := range []string{"", "dev"} {
		req := w.viewRequest(w.syncAt(gadgets, ref), views)
		req.Repo = repoPath(t, gadgets)
		testenv.Must(0, w.volume.PublishSubtrees(t.Context(), req))(t)
	}
	for _, repo := range []string{widgets, gadgets} {
		w.mustRead(SubtreePath(repo, "argo", "api"), map[string]string{"api/a": "1"})
		w.mustRead(SubtreePath(repo+"@dev", "argo", "api"), map[string]string{"api/a": "2"})
		w.mustVerifyAt(repo)
	}
	mustShareFiles(t, w.path(SubtreePath(gadgets, "argo", "web")), w.path(gadgets), "web/a")
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	for range 4 {
		w.gcAt(widgets)
	}
	if isThere(t, w.path(widgets+"@~")) || isThere(t, w.volume.folder(repoPath(t, widgets)).trees()) {
		t.Error("views are left at the old path")
	}
	if got := w.repos(); !slices.Equal(got, []string{gadgets}) {
		t.Errorf("repositories: %v", got)
	}
	w.mustRead(SubtreePath(gadgets, "argo", "api"), map[string]string{"api/a": "1"})
	w.mustVerifyAt(gadgets)
}
