package volume

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func TestFirstSyncClones(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"README": "one\n", "src/a.go": "package a\n"})

	res := w.sync("")

	if res.Ref.String() != "refs/heads/main" || res.After != commit || res.Before != "" || !res.Published {
		t.Errorf("unexpected result %+v", res)
	}
	if res.Path != widgets || !strings.HasPrefix(res.Tree, ".lockstep/repos/acme/widgets/trees/1-"+commit[:12]) {
		t.Errorf("path %q, tree %q", res.Path, res.Tree)
	}
	want := []events.File{{Path: "README", Status: events.FileAdded}, {Path: "src/a.go", Status: events.FileAdded}}
	if !slices.Equal(res.Files, want) || res.Full || res.Truncated {
		t.Errorf("files %v, full %v", res.Files, res.Full)
	}
	w.mustBeSound(widgets, commit)
	w.mustRead(widgets, map[string]string{"README": "one\n", "src/a.go": "package a\n"})
	if got := w.gitIn(widgets, "branch", "--show-current"); got != "main" {
		t.Errorf("on branch %q", got)
	}
	if remotes := w.gitIn(widgets, "remote"); remotes != "" {
		t.Errorf("the tree has remotes: %s", remotes)
	}
}

func TestUpToDateSyncPublishesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	first := w.sync("")

	again := w.sync("")

	if again.Published || again.Tree != first.Tree || again.Before != commit || again.After != commit || len(again.Files) != 0 {
		t.Errorf("unexpected result %+v", again)
	}
	if stats := w.git.Stats(widgets); stats.UploadPacks != 1 {
		t.Errorf("%d fetches, want 1", stats.UploadPacks)
	}
}

func TestSyncListsFilesFromTheCallersBase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1", "b": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2"})
	w.sync("")
	last := w.push(map[string]string{"c": "3"})
	w.sync("")

	for name, tc := range map[string]struct {
		base  string
		files []events.File
		full  bool
	}{
		"two commits back": {base: first, files: []events.File{{Path: "a", Status: "modified"}, {Path: "c", Status: "added"}}},
		"the same commit":  {base: last},
		"none":             {files: []events.File{{Path: "a", Status: "added"}, {Path: "b", Status: "added"}, {Path: "c", Status: "added"}}},
		"unknown": {
			base: strings.Repeat("1", 40), full: true,
			files: []events.File{{Path: "a", Status: "added"}, {Path: "b", Status: "added"}, {Path: "c", Status: "added"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := w.request("")
			req.Base = func(events.Ref, Publication) Base { return Base{Commit: tc.base} }
			res := testenv.Must(w.volume.Sync(t.Context(), req))(t)
			if !slices.Equal(res.Files, tc.files) || res.Full != tc.full || res.Before != tc.base || res.Published {
				t.Errorf("unexpected result %+v", res)
			}
		})
	}
}

// TestHistories updates a branch in all possible ways and checks each step with Git.
func TestHistories(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(w *world, first, second string) string{
		"push": func(w *world, _, _ string) string { return w.push(map[string]string{"a": "3"}) },
		"force push": func(w *world, first, _ string) string {
			return w.commit("main", gitserver.Edit{Parent: first, Write: map[string]string{"a": "forced"}})
		},
		"rewind": func(w *world, first, _ string) string {
			testenv.Must(0, w.git.SetRef(w.t.Context(), widgets, "refs/heads/main", first))(w.t)
			return first
		},
		"orphan": func(w *world, _, _ string) string {
			return w.commit("main", gitserver.Edit{Orphan: true, Write: map[string]string{"z": "orphan"}})
		},
		"many commits at once": func(w *world, _, _ string) (commit string) {
			for i := range testenv.Form(10, 50) {
				commit = w.push(map[string]string{"n": strings.Repeat("x", i)})
			}
			return commit
		},
		"empty tree": func(w *world, _, _ string) string {
			return w.commit("main", gitserver.Edit{Delete: []string{"a", "dir", "kept"}})
		},
		"file becomes folder and back": func(w *world, _, _ string) string {
			return w.commit("main", gitserver.Edit{Delete: []string{"a", "dir"}, Write: map[string]string{"a/x": "1", "dir": "file"}})
		},
		"empty commit": func(w *world, _, _ string) string { return w.commit("main", gitserver.Edit{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.create(map[string]string{"a": "1", "dir/b": "1", "kept": "kept"})
			w.sync("")
			second := w.push(map[string]string{"a": "2"})
			w.sync("")

			third := move(w, first, second)
			res := w.sync("")

			if res.After != third || res.Before != second || !res.Published || res.Full {
				t.Errorf("unexpected result %+v", res)
			}
			w.mustBeSound(widgets, third)
			w.mustMatchGitDiff(res)
			fourth := w.push(map[string]string{"last": "4"})
			w.sync("")
			w.mustBeSound(widgets, fourth)
		})
	}
}

// mustMatchGitDiff compares the listed files with git diff-tree.
func (w *world) mustMatchGitDiff(res SyncResult) {
	w.t.Helper()
	out := testenv.Must(w.git.Git(w.t.Context(), widgets, "", "diff-tree", "-r", "-z", "-M100%", "-l0", res.Before, res.After))(w.t)
	fields := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	var want []events.File
	for len(fields) > 1 {
		raw := strings.Fields(fields[0]) // ":100644 100755 hash hash M"
		file := events.File{Path: fields[1], Status: map[byte]events.FileStatus{
			'A': events.FileAdded, 'M': events.FileModified, 'T': events.FileModified, 'D': events.FileDeleted, 'R': events.FileRenamed,
		}[raw[4][0]]}
		fields = fields[2:]
		switch {
		case file.Status == events.FileRenamed:
			file.From, file.Path, fields = file.Path, fields[0], fields[1:]
		case file.Status == events.FileModified && raw[4] == "M" && raw[2] == raw[3]:
			file.Status = events.FileModeChanged
		}
		want = append(want, file)
	}
	slices.SortFunc(want, func(a, b events.File) int { return strings.Compare(a.Path, b.Path) })
	if !slices.Equal(res.Files, want) {
		w.t.Errorf("files %v\ngit says %v", res.Files, want)
	}
}

func TestAllEntryKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{
		"with space": "s", "ünïcode/ß": "u", "latin1-\xe9": "l", "tab\there": "t", "quote\"d": "q", "-dash": "d", ".gitignore": "x",
	})
	commit := w.commit("main", gitserver.Edit{
		Exec:      map[string]string{"run.sh": "#!/bin/sh\n"},
		Link:      map[string]string{"in": "run.sh", "out": "../../../../etc/passwd", "abs": "/etc/passwd", "dangling": "nowhere"},
		Submodule: map[string]string{"sub": anID("aa")},
	})

	w.sync("")

	w.mustBeSound(widgets, commit)
	w.mustRead(widgets, map[string]string{
		"with space": "s", "ünïcode/ß": "u", "latin1-\xe9": "l", "tab\there": "t", "quote\"d": "q", "-dash": "d", ".gitignore": "x",
		"run.sh": "#!/bin/sh\n", "in": "→ run.sh", "out": "→ ../../../../etc/passwd", "abs": "→ /etc/passwd", "dangling": "→ nowhere",
	})
	if info := testenv.Must(os.Stat(w.path(widgets, "run.sh")))(t); info.Mode().Perm() != 0o755 {
		t.Errorf("run.sh has mode %v", info.Mode())
	}
	if info := testenv.Must(os.Stat(w.path(widgets, "with space")))(t); info.Mode().Perm() != 0o644 {
		t.Errorf("a regular file has mode %v", info.Mode())
	}
	if entries := testenv.Must(os.ReadDir(w.path(widgets, "sub")))(t); len(entries) != 0 {
		t.Errorf("the submodule's folder has %v", entries)
	}

	before := w.sync("")
	next := w.commit("main", gitserver.Edit{Write: map[string]string{"run.sh": "#!/bin/sh\n"}, Link: map[string]string{"in": "elsewhere"}})
	res := w.sync("")
	w.mustBeSound(widgets, next)
	w.mustMatchGitDiff(res)
	if info := testenv.Must(os.Stat(w.path(before.Tree, "run.sh")))(t); info.Mode().Perm() != 0o755 {
		t.Errorf("the old tree's run.sh was changed to %v", info.Mode())
	}
}

func TestUnchangedFilesAreShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"dir/same": "same", "changed": "1"})
	old := w.sync("")
	w.push(map[string]string{"changed": "2"})
	now := w.sync("")

	inode := func(tree, file string) os.FileInfo { return testenv.Must(os.Lstat(w.path(tree, file)))(t) }
	if !os.SameFile(inode(old.Tree, "dir/same"), inode(now.Tree, "dir/same")) {
		t.Error("an unchanged file was written anew")
	}
	if os.SameFile(inode(old.Tree, "changed"), inode(now.Tree, "changed")) {
		t.Error("a changed file shares its inode with the old tree")
	}
	w.mustRead(old.Tree, map[string]string{"dir/same": "same", "changed": "1"})
	w.mustRead(now.Tree, map[string]string{"dir/same": "same", "changed": "2"})
}

func TestTamperedFileIsNotReused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"victim": "honest", "other": "1"})
	old := w.sync("")
	if err := os.WriteFile(w.path(old.Tree, "victim"), []byte("forged!"), 0o644); err != nil {
		t.Fatal(err)
	}
	commit := w.push(map[string]string{"other": "2"})
	w.sync("")
	w.mustRead(widgets, map[string]string{"victim": "honest", "other": "2"})
	w.mustBeSound(widgets, commit)
}

func TestThinFetch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"big": strings.Repeat("some text that does not pack well\n", 1000), "small": "1"})
	w.sync("")
	w.push(map[string]string{"small": "2"})
	w.sync("")

	store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
	out := testenv.Must(gitserver.Git(t.Context(), store.dir, "", "count-objects", "-v"))(t)
	if !strings.Contains(out, "count: 3\n") || !strings.Contains(out, "packs: 1\n") {
		t.Errorf("want the first pack, and a commit, a tree and a blob:\n%s", out)
	}
	if out := testenv.Must(gitserver.Git(t.Context(), store.dir, "", "fsck", "--full"))(t); strings.Contains(out, "missing") {
		t.Errorf("git fsck in the store: %s", out)
	}
}

// TestTreesAreIndependent moves a volume whose store has two generations, and deletes all trees
// except one.
func TestTreesAreIndependent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "dir/b": "1"})
	first := w.sync("")
	w.push(map[string]string{"a": "2"})
	second := w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	index := testenv.Must(filepath.Glob(filepath.Join(f.generation(1).dir, "objects/pack/*.idx")))(t)[0]
	testenv.Must(0, os.Rename(index, index+"-away"))(t)
	w.push(map[string]string{"a": "3"})
	third := w.sync("")
	testenv.Must(0, os.Rename(index+"-away", index))(t)
	if generations := testenv.Must(f.generations())(t); !slices.Equal(generations, []int{1, 2}) {
		t.Fatalf("generations %v", generations)
	}
	moved := filepath.Join(t.TempDir(), "elsewhere")
	testenv.Must(0, os.Rename(w.volume.Root(), moved))(t)
	w.volume = w.open(moved, Config{})

	for _, res := range []SyncResult{first, second, third} {
		w.mustBeSound(res.Tree, res.After)
	}
	w.mustBeSound(widgets, third.After)
	testenv.Must(0, os.RemoveAll(w.path(first.Tree)))(t)
	testenv.Must(0, os.RemoveAll(w.path(third.Tree)))(t)
	w.mustBeSound(second.Tree, second.After)
	w.mustRead(second.Tree, map[string]string{"a": "2", "dir/b": "1"})
	if healed := w.sync(""); healed.After != third.After || !healed.Published {
		t.Errorf("a tree removed by hand was not built again: %+v", healed)
	}
	w.mustBeSound(widgets, third.After)
}

func TestDeletedStoreIsRecreated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	res := w.sync("")
	testenv.Must(0, os.RemoveAll(w.volume.folder(repoPath(t, widgets)).stores()))(t)
	w.sync("")
	w.mustBeSound(widgets, res.After)
}

// TestStoreIsKeptIfTreeIsUnreadable makes the alternates file of a tree unreadable.
func TestStoreIsKeptIfTreeIsUnreadable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	res := w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	next := testenv.Must(f.nextStore(nil))(t)
	testenv.Must(0, object.MakeBare(next.dir, object.SHA1))(t)
	testenv.Must(0, os.WriteFile(filepath.Join(next.dir, "packed-refs"), nil, 0o644))(t)
	alternates := w.path(res.Tree, ".git/objects/info/alternates")
	testenv.Must(0, os.Rename(alternates, alternates+"-away"))(t)
	testenv.Must(0, os.Mkdir(alternates, 0o755))(t) // exists, but cannot be read

	s := &holder{v: w.volume, f: f, fence: w.fence.Load(), binding: binding{Repo: repoPath(t, widgets)}}
	testenv.Must(0, s.tidy(t.Context()))(t)

	testenv.Must(0, os.Remove(alternates))(t)
	testenv.Must(0, os.Rename(alternates+"-away", alternates))(t)
	w.mustBeSound(widgets, res.After)
}

// TestFilesAreWorldReadable checks that other users can read everything that Git needs.
func TestFilesAreWorldReadable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2"})
	w.sync("")
	err := filepath.WalkDir(w.path(adminDir, "repos"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Type() == os.ModeSymlink {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o044 != 0o044 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	testenv.Must(0, err)(t)
}
