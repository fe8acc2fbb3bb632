package volume

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/volume/fsck"
	"lockstep/tree"
)

func (w *world) verify(repair bool) fsck.Report {
	w.t.Helper()
	return testenv.Must(w.volume.Verify(w.t.Context(), VerifyRequest{Repo: repoPath(w.t, widgets), Fence: w.fence.Add(1), Repair: repair}))(w.t)
}

// flipBit flips one bit in the middle of a file and keeps its size, modification time and mode.
func flipBit(t *testing.T, path string, at float64) {
	t.Helper()
	info := testenv.Must(os.Stat(path))(t)
	testenv.Must(0, os.Chmod(path, 0o644))(t)
	content := testenv.Must(os.ReadFile(path))(t)
	content[int(float64(len(content)-1)*at)] ^= 0x10
	testenv.Must(0, os.WriteFile(path, content, 0o644))(t)
	testenv.Must(0, os.Chmod(path, info.Mode()))(t)
	testenv.Must(0, os.Chtimes(path, time.Time{}, info.ModTime()))(t)
}

// one returns the first file that matches a pattern.
func one(t *testing.T, pattern ...string) string {
	t.Helper()
	found := testenv.Must(filepath.Glob(filepath.Join(pattern...)))(t)
	if len(found) == 0 {
		t.Fatalf("no %v", pattern)
	}
	return found[0]
}

// TestRepairKeepsDepths fetches one ref with more history than asked for later, and damages the store or the trees.
func TestRepairKeepsDepths(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, store, tree string){
		"store":    func(t *testing.T, store, _ string) { flipBit(t, one(t, store, "objects/pack/*.pack"), 0.5) },
		"no store": func(t *testing.T, store, _ string) { testenv.Must(0, os.RemoveAll(store))(t) },
		"no depth": func(t *testing.T, store, _ string) {
			testenv.Must(0, os.Remove(filepath.Join(store, depthName)))(t)
			flipBit(t, one(t, store, "objects/pack/*.pack"), 0.5)
		},
		"tree": func(t *testing.T, _, tree string) { testenv.Must(0, os.Remove(filepath.Join(tree, "a")))(t) },
	} {
		for _, depth := range []events.Depth{3, events.DepthFull} {
			t.Run(fmt.Sprint(name, " at ", depth), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.create(map[string]string{"a": "0"})
				for i := range 5 {
					w.push(map[string]string{"a": fmt.Sprint(i)})
				}
				main := w.git.Head(widgets, "refs/heads/main")
				testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/other", main))(t)
				req := w.request("")
				req.Depth = depth
				tree := testenv.Must(w.volume.Sync(t.Context(), req))(t).Tree
				w.sync("other")
				history := func(name string) string { return w.gitIn(name, "rev-list", "--count", "HEAD") }
				before := history(widgets)
				if before == "1" || history(widgets+"@other") != before {
					t.Fatalf("history of %s and %s commits before", before, history(widgets+"@other"))
				}
				store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
				damage(t, store.dir, w.path(tree))
				if report := w.verify(true); len(report.Marked) == 0 {
					t.Fatalf("%+v", report)
				}

				w.sync("")
				w.sync("other")

				for _, name := range []string{widgets, widgets + "@other"} {
					w.mustBeSound(name, main)
					if after := history(name); after != before {
						t.Errorf("%s: history of %s commits, %s before", name, after, before)
					}
				}
			})
		}
	}
}

// TestDamageIsFoundAndRepaired damages one part of a repository. Verify must find the damage, and find
// nothing once it is marked and synced.
func TestDamageIsFoundAndRepaired(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "dir/same": noise(t, 1000), "dir/other": "other"})
	w.commit("main", gitserver.Edit{Exec: map[string]string{"run": "#!/bin/sh\n"}, Link: map[string]string{"link": "a"},
		Submodule: map[string]string{"sub": anID("aa")}})
	w.sync("")
	commit := w.push(map[string]string{"a": "2"})
	w.sync("")
	sound := w.volume
	for name, damage := range map[string]func(t *testing.T, store, tree string){
		"a bit of a pack": func(t *testing.T, store, _ string) { flipBit(t, one(t, store, "objects/pack/*.pack"), 0.5) },
		"a pack's count":  func(t *testing.T, store, _ string) { flipBit(t, one(t, store, "objects/pack/*.pack"), 0.01) },
		"a pack cut short": func(t *testing.T, store, _ string) {
			pack := one(t, store, "objects/pack/*.pack")
			testenv.Must(0, os.Truncate(pack, testenv.Must(os.Stat(pack))(t).Size()-30))(t)
		},
		"a bit of an index": func(t *testing.T, store, _ string) { flipBit(t, one(t, store, "objects/pack/*.idx"), 0.9) },
		"no index": func(t *testing.T, store, _ string) {
			testenv.Must(0, os.Remove(one(t, store, "objects/pack/*.idx")))(t)
		},
		"a loose object": func(t *testing.T, store, _ string) { flipBit(t, one(t, store, "objects/[0-9a-f][0-9a-f]/*"), 0.5) },
		"no loose object": func(t *testing.T, store, _ string) {
			testenv.Must(0, os.Remove(one(t, store, "objects/[0-9a-f][0-9a-f]/*")))(t)
		},
		"a line of the store's refs": func(t *testing.T, store, _ string) { flipBit(t, filepath.Join(store, "packed-refs"), 0.6) },
		"no store":                   func(t *testing.T, store, _ string) { testenv.Must(0, os.RemoveAll(store))(t) },
		"a file, unseen":             func(t *testing.T, _, tree string) { flipBit(t, filepath.Join(tree, "dir/same"), 0.5) },
		"an emptied file": func(t *testing.T, _, tree string) {
			testenv.Must(0, os.Truncate(filepath.Join(tree, "dir/same"), 0))(t)
		},
		"a missing file":   func(t *testing.T, _, tree string) { testenv.Must(0, os.Remove(filepath.Join(tree, "dir/same")))(t) },
		"a missing folder": func(t *testing.T, _, tree string) { testenv.Must(0, os.RemoveAll(filepath.Join(tree, "dir")))(t) },
		"an extra file": func(t *testing.T, _, tree string) {
			testenv.Must(0, os.WriteFile(filepath.Join(tree, "dir/extra"), nil, 0o644))(t)
		},
		"a mode": func(t *testing.T, _, tree string) { testenv.Must(0, os.Chmod(filepath.Join(tree, "run"), 0o644))(t) },
		"a link's target": func(t *testing.T, _, tree string) {
			testenv.Must(0, os.Remove(filepath.Join(tree, "link")))(t)
			testenv.Must(0, os.Symlink("SAME", filepath.Join(tree, "link")))(t)
		},
		"a file that became a link": func(t *testing.T, _, tree string) {
			testenv.Must(0, os.Rename(filepath.Join(tree, "a"), filepath.Join(tree, ".git/a")))(t)
			testenv.Must(0, os.Symlink(".git/a", filepath.Join(tree, "a")))(t)
		},
		"a folder that became a link": func(t *testing.T, _, tree string) {
			testenv.Must(0, os.Rename(filepath.Join(tree, "dir"), filepath.Join(tree, ".git/dir")))(t)
			testenv.Must(0, os.Symlink(".git/dir", filepath.Join(tree, "dir")))(t)
		},
		"a submodule's folder": func(t *testing.T, _, tree string) { testenv.Must(0, os.Remove(filepath.Join(tree, "sub")))(t) },
		"a tree's index":       func(t *testing.T, _, tree string) { flipBit(t, filepath.Join(tree, ".git/index"), 0.5) },
		"a tree's manifest": func(t *testing.T, _, tree string) {
			flipBit(t, checkout.GitDirOf(tree).Manifest(), 0.5)
		},
		"no index in a tree": func(t *testing.T, _, tree string) { testenv.Must(0, os.Remove(filepath.Join(tree, ".git/index")))(t) },
		"a tree's HEAD": func(t *testing.T, _, tree string) {
			testenv.Must(0, os.WriteFile(filepath.Join(tree, ".git/HEAD"), []byte("ref: refs/heads/other\n"), 0o644))(t)
		},
		"a tree's commit": func(t *testing.T, _, tree string) { flipBit(t, filepath.Join(tree, ".git/packed-refs"), 0.6) },
		"a tree's store": func(t *testing.T, _, tree string) {
			testenv.Must(0, os.WriteFile(filepath.Join(tree, ".git/objects/info/alternates"), []byte("../../nowhere/objects\n"), 0o644))(t)
		},
		"a published name": func(t *testing.T, _, tree string) {
			testenv.Must(0, os.RemoveAll(tree))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/main", commit))(t)
			root := filepath.Join(t.TempDir(), "root")
			testenv.Must(0, exec.Command("cp", "-a", sound.Root(), root).Run())(t)
			w.volume = w.open(root, Config{})
			if report := w.verify(true); report.Found != 0 || report.Trees != 2 || report.Objects < 8 || report.Files != 12 || len(report.Marked) != 0 {
				t.Fatalf("before any damage: %+v", report)
			}
			store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t).dir
			damage(t, store, testenv.Must(filepath.EvalSymlinks(w.path(widgets)))(t))

			found := w.verify(false)
			if found.Found == 0 || len(found.Problems) == 0 || len(found.Marked) != 0 {
				t.Fatalf("not found: %+v", found)
			}
			if again := w.verify(true); again.Found < found.Found {
				t.Errorf("it found %d problems, and then %d", found.Found, again.Found)
			}
			w.sync("")

			if report := w.verify(false); report.Found != 0 || report.Trees == 0 {
				t.Errorf("after the repair: %+v", report)
			}
			w.mustBeSound(widgets, commit)
			next := w.push(map[string]string{"a": "3"})
			w.sync("")
			w.mustBeSound(widgets, next)
			w.volume = w.open(w.volume.Root(), Config{Grace: 1})
			w.gc(true)
			if report := w.verify(false); report.Found != 0 || report.Trees != 1 {
				t.Errorf("after the grace: %+v", report)
			}
		})
	}
}

// TestRepairReplacesOnlyDamage damages the tree of one of two refs.
func TestRepairReplacesOnlyDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "1"})
	w.commit("next", gitserver.Edit{Parent: w.git.Head(widgets, "refs/heads/main"), Write: map[string]string{"a": "next"}})
	w.sync("")
	other := w.sync("next")
	flipBit(t, w.path(widgets, "a"), 0)
	fetched := w.git.Stats(widgets).UploadPacks

	report := w.verify(true)

	if report.Found != 1 || len(report.Marked) != 1 {
		t.Fatalf("report %+v", report)
	}
	if after := w.sync("next"); after.Tree != other.Tree {
		t.Error("the sound tree was replaced")
	}
	if got := w.verify(false); got.Found != 1 || !strings.Contains(got.Problems[0].What, "sync to replace") {
		t.Errorf("report %+v, want the one that waits for a sync", got)
	}
	if res := w.sync(""); !res.Published {
		t.Error("the damaged tree was not replaced")
	}
	w.mustRead(widgets, map[string]string{"a": "1", "b": "1"})
	if w.git.Stats(widgets).UploadPacks != fetched {
		t.Error("objects were fetched though the store is sound")
	}
}

func TestVerifyReportsUnreadableFiles(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file    func(f folder) string
		content string
	}{
		"the fence":   {folder.fence, "many\n"},
		"the binding": {folder.binding, "{"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			w.sync("")
			path := tc.file(w.volume.folder(repoPath(t, widgets)))
			testenv.Must(0, os.WriteFile(path, []byte(tc.content), 0o644))(t)
			report := w.verify(true)
			if report.Found != 1 || report.Problems[0].Path != w.volume.relative(path) {
				t.Errorf("report %+v", report)
			}
		})
	}
}

func TestVerifyLimitsListedProblems(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := map[string]string{}
	for i := range 200 {
		files[strings.Repeat("f", 1+i%20)+string(rune('a'+i%26))+strings.Repeat("g", i/20)] = "1"
	}
	w.create(files)
	w.sync("")
	for name := range maps.Keys(files) {
		testenv.Must(0, os.Remove(w.path(widgets, name)))(t)
	}
	report := w.verify(false)
	if report.Found != len(files) || len(report.Problems) != 100 {
		t.Errorf("found %d, listed %d, of %d", report.Found, len(report.Problems), len(files))
	}
}

func TestVerifyOfUnknownRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.volume.Verify(t.Context(), VerifyRequest{Repo: repoPath(t, widgets), Fence: 1})
	testenv.MustFail(t, err, events.ClassNotFound, events.Permanent)
	if entries := testenv.Must(os.ReadDir(w.volume.reposDir()))(t); len(entries) != 0 {
		t.Errorf("it made %v", entries)
	}
}

// TestVerifyReadsLargePacks verifies a pack that is large enough for several readers.
func TestVerifyReadsLargePacks(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.SkipUnderRace(t)
	w := newWorld(t)
	files := map[string]string{}
	for i := range 5100 {
		files[filepath.Join("dir"+string(rune('a'+i%26)), "file"+strings.Repeat("x", i%7)+string(rune('a'+i/26%26))+string(rune('a'+i/676)))] = strings.Repeat("x", i)[:i%100] + string(rune(i))
	}
	w.create(files)
	w.sync("")
	report := w.verify(false)
	if report.Found != 0 || report.Files != int64(len(files)) {
		t.Errorf("report %+v of %d files", report, len(files))
	}
	if slices.ContainsFunc(report.Problems, func(p fsck.Problem) bool { return true }) {
		t.Error(report.Problems)
	}
}

// TestOldModesAreNotDamage syncs file modes that early versions of Git and other implementations write.
func TestOldModesAreNotDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	blob := testenv.Must(w.git.Blob(t.Context(), widgets, "content"))(t)
	entries := testenv.Must(w.git.Tree(t.Context(), widgets,
		gitserver.Entry{Mode: "100600", Name: "mine", Hash: blob}, gitserver.Entry{Mode: "100664", Name: "old", Hash: blob},
		gitserver.Entry{Mode: "100775", Name: "run", Hash: blob}))(t)
	testenv.Must(w.git.CommitTree(t.Context(), widgets, gitserver.Main, entries))(t)
	w.sync("")
	if report := w.verify(false); report.Found != 0 {
		t.Errorf("found %+v", report)
	}
}

// TestMarkedTreeStaysReadable opens a tree that is marked for replacement.
func TestMarkedTreeStaysReadable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1", "b": "1"})
	w.sync("")
	flipBit(t, w.path(widgets, "a"), 0)
	w.verify(true)

	marked, err := tree.Open(w.volume.Root(), widgets)
	if err != nil {
		t.Fatal(err)
	}
	defer marked.Close()
	if marked.Commit() != commit || marked.Ref().String() != "refs/heads/main" {
		t.Errorf("opened %s of %s", marked.Commit(), marked.Ref())
	}
	if res := w.sync(""); !res.Published {
		t.Errorf("not replaced: %+v", res)
	}
}

// TestMissingCommitIsFound removes a commit from the middle of the history.
func TestMissingCommitIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	w.syncDepth("", events.DepthFull)
	middle := w.push(map[string]string{"a": "1"})
	w.syncDepth("", events.DepthFull)
	w.push(map[string]string{"a": "2"})
	w.syncDepth("", events.DepthFull)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.gc(false) // so that no tree has that commit checked out
	if report := w.verify(false); report.Found != 0 {
		t.Fatalf("before any damage: %+v", report)
	}
	store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
	testenv.Must(0, os.Remove(filepath.Join(store.dir, "objects", middle[:2], middle[2:])))(t)
	if report := w.verify(true); report.Found != 1 || len(report.Marked) != 2 {
		t.Errorf("found %+v", report)
	}
	w.syncDepth("", events.DepthFull)
	w.mustShow(widgets, 3)
	if report := w.verify(false); report.Found != 0 {
		t.Errorf("after the repair: %+v", report)
	}
}

// TestRepairDiscardsPreparedTrees repairs a repository whose prepared tree alone may be damaged.
func TestRepairDiscardsPreparedTrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.prepare()
	w.verify(false)
	if !w.isPrepared(widgets) {
		t.Error("discarded without repair")
	}
	if report := w.verify(true); report.Found > 0 || w.isPrepared(widgets) {
		t.Errorf("prepared: %v, report %+v", w.isPrepared(widgets), report)
	}
}

// rewrite overwrites a file's inode with content of the same size, and restores its times.
func rewrite(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	content := slices.Repeat([]byte{'!'}, int(info.Size()))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close(), os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// TestAlterationsAreReplaced alters the published tree in ways that its next tree does not notice, and in others. Verify finds each, and
// the next sync replaces the tree. Nothing of it is in later trees, and the result lists the whole tree.
func TestAlterationsAreReplaced(t *testing.T) {
	t.Parallel()
	replaced := func(path string, by func() error) error { return errors.Join(os.RemoveAll(path), by()) }
	for name, alter := range map[string]func(tree string) error{
		"a file":           func(tree string) error { return rewrite(tree + "/dir/stays") },
		"a large file":     func(tree string) error { return rewrite(tree + "/large") },
		"files":            func(tree string) error { return errors.Join(rewrite(tree+"/dir/stays"), rewrite(tree+"/a")) },
		"an executable":    func(tree string) error { return os.Chmod(tree+"/dir/stays", 0o755) },
		"another size":     func(tree string) error { return os.Truncate(tree+"/a", 0) },
		"a file is gone":   func(tree string) error { return os.Remove(tree + "/dir/stays") },
		"a folder is gone": func(tree string) error { return os.RemoveAll(tree + "/dir") },
		"another file":     func(tree string) error { return os.WriteFile(tree+"/dir/more", []byte("more"), 0o644) },
		"a renamed file":   func(tree string) error { return os.Rename(tree+"/a", tree+"/c") },
		"a link": func(tree string) error {
			return replaced(tree+"/a", func() error { return os.Symlink("/etc/passwd", tree+"/a") })
		},
		"a link elsewhere": func(tree string) error {
			return replaced(tree+"/link", func() error { return os.Symlink("b", tree+"/link") })
		},
		"a file as a folder": func(tree string) error {
			return replaced(tree+"/a", func() error { return os.Mkdir(tree+"/a", 0o755) })
		},
		"a folder as a link": func(tree string) error {
			return replaced(tree+"/dir", func() error { return os.Symlink("/tmp", tree+"/dir") })
		},
		"a pipe": func(tree string) error {
			return replaced(tree+"/a", func() error { return unix.Mkfifo(tree+"/a", 0o644) })
		},
		"the manifest": func(tree string) error {
			return os.WriteFile(checkout.GitDirOf(tree).Manifest(), []byte("fake"), 0o644)
		},
		"no manifest":      func(tree string) error { return os.Remove(checkout.GitDirOf(tree).Manifest()) },
		"no .git":          func(tree string) error { return os.RemoveAll(tree + "/.git") },
		"the whole tree":   os.RemoveAll,
		"all of its names": func(tree string) error { return replaced(tree, func() error { return os.Mkdir(tree, 0o755) }) },
	} {
		for _, prepared := range []bool{false, true} {
			if !testenv.All() && (!prepared || !slices.Contains([]string{"files", "a file is gone", "another file"}, name)) {
				continue
			}
			t.Run(fmt.Sprintf("%s, prepared=%v", name, prepared), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				want := map[string]string{"a": "same", "dir/stays": "same", "dir/sub/b": "b", "large": fmt.Sprintf("%600000d", 1), "changes": "0"}
				testenv.Must(w.git.Create(t.Context(), widgets, want))(t)
				w.commit(gitserver.Main, gitserver.Edit{Link: map[string]string{"link": "a"}})
				w.sync("")
				want["changes"] = "1"
				commit := w.push(want)
				res := w.sync("") // shares files with the tree before
				if prepared {
					w.prepare()
				}
				w.mustVerify()
				testenv.Must(0, alter(w.path(res.Tree)))(t)
				if report := w.verify(true); report.Found == 0 {
					t.Errorf("report %+v", report)
				}
				before := res.Tree
				req := w.request("")
				req.Base = func(events.Ref, Publication) Base { return Base{Commit: commit} } // as a worker knows from the state
				res = testenv.Must(w.volume.Sync(t.Context(), req))(t)
				if res.Tree == before || res.Before != commit || res.After != commit {
					t.Errorf("not replaced: %+v", res)
				}
				if isThere(t, w.path(before, ".git", "lockstep-damaged")) && (!res.Full || len(res.Files) != 6) {
					t.Errorf("the result does not list the whole tree: %+v", res)
				}
				w.mustBeSound(widgets, commit)
				for i := range 2 {
					if prepared {
						w.prepare()
					}
					want["changes"] = fmt.Sprint(i + 2)
					commit = w.push(want)
					w.sync("")
					w.mustBeSound(widgets, commit)
				}
				got := readTree(t, w.path(widgets))
				delete(got, "link")
				if !maps.Equal(got, want) {
					t.Errorf("the tree has other files")
				}
			})
		}
	}
}

// TestAlteredInodeOfAnotherRef alters a file that the trees of two refs share. Both are replaced.
func TestAlteredInodeOfAnotherRef(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "same", "b": "1"})
	w.sync("")
	commit := w.commit("next", gitserver.Edit{Write: map[string]string{"b": "2"}, Parent: main})
	res := w.sync("next")
	if inode(t, w.path(widgets, "a")) != inode(t, w.path(res.Tree, "a")) {
		t.Fatal("the trees share no file")
	}
	w.prepareRef("next")
	testenv.Must(0, rewrite(w.path(res.Tree, "a")))(t)
	report := w.verify(true)
	if len(report.Marked) != 2 || w.isPrepared(widgets) {
		t.Errorf("marked %v", report.Marked)
	}
	w.sync("next")
	w.mustBeSound(widgets+"@next", commit)
	w.sync("")
	w.mustVerify()
}
