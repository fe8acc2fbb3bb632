package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// clone runs git clone at the path to publish, and leaves uncommitted work in the clone.
func (w *world) clone(url string) (path string) {
	w.t.Helper()
	path = w.path(widgets)
	testenv.Must(0, os.MkdirAll(filepath.Dir(path), 0o755))(w.t)
	testenv.Must(gitserver.Git(w.t.Context(), w.t.TempDir(), "", "clone", "--quiet", url, path))(w.t)
	return path
}

// mustKeep checks that a folder still matches its snapshot.
func mustKeep(t *testing.T, path string, want map[string]string) {
	t.Helper()
	got := snapshot(t, path)
	for name, content := range want {
		if got[name] != content {
			t.Errorf("%s: %q is not as it was", path, name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d entries, want %d", path, len(got), len(want))
	}
}

// snapshot reads a folder, including its .git, modes and times, but not its own time.
func snapshot(t *testing.T, root string) map[string]string {
	t.Helper()
	entries := map[string]string{}
	testenv.Must(0, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := fmt.Sprint(info.Mode(), info.ModTime())
		if path == root {
			text = info.Mode().String() // XFS sets its time when it is moved, as its entry ".." changes
		}
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += string(content)
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += target
		}
		entries[strings.TrimPrefix(path, root)] = text
		return nil
	}))(t)
	return entries
}

// adoptedClones lists the clones that were adopted.
func (w *world) adoptedClones() []Adopted {
	w.t.Helper()
	detail, _, err := w.volume.Describe(repoPath(w.t, widgets))
	return testenv.Must(detail.Adopted, err)(w.t)
}

func TestAdoptedCloneIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "1"})
	path := w.clone(w.git.URL(widgets))
	testenv.Must(0, os.WriteFile(filepath.Join(path, "a"), []byte("dirty"), 0o600))(t)
	testenv.Must(0, os.WriteFile(filepath.Join(path, "untracked"), []byte("mine"), 0o644))(t)
	testenv.Must(0, os.Symlink("nowhere", filepath.Join(path, "link")))(t)
	testenv.Must(gitserver.Git(t.Context(), path, "", "branch", "unpushed"))(t)
	was := snapshot(t, path)
	commit := w.push(map[string]string{"a": "2"})

	w.sync("")

	w.mustBeSound(widgets, commit)
	w.mustRead(widgets, map[string]string{"a": "2", "b": "1"})
	clones := w.adoptedClones()
	if len(clones) != 1 {
		t.Fatalf("clones %v", clones)
	}
	mustKeep(t, w.path(clones[0].Path), was)
	next := w.push(map[string]string{"a": "3"})
	w.sync("")
	w.mustBeSound(widgets, next)
	collected := testenv.Must(w.volume.GC(t.Context(), GCRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Full: true}))(t)
	if got := collected.Usage.Adopted; len(got) != 1 || got[0].Bytes == 0 {
		t.Errorf("adopted %v", got)
	}
	testenv.Must(w.volume.Remove(t.Context(), RemoveRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Force: true}))(t)
	mustKeep(t, w.path(clones[0].Path), was)
	mustBeTidy(t, w)
}

// TestReadersSeeNoGapDuringAdoption reads the name in a loop during an adoption.
func TestReadersSeeNoGapDuringAdoption(t *testing.T) {
	t.Parallel()
	files := func(version string) map[string]string {
		files := map[string]string{}
		for i := range 8 {
			files[fmt.Sprintf("dir%d/file", i)] = version
		}
		return files
	}
	w := newWorld(t)
	w.create(files("old"))
	rounds := testenv.Form(2, 10)
	for round := range rounds {
		testenv.Must(0, os.RemoveAll(w.path("acme")))(t)
		w.volume = w.open(w.volume.Root(), Config{})
		w.push(files(fmt.Sprint("before ", round)))
		path := w.clone(w.git.URL(widgets))
		w.push(files(fmt.Sprint("after ", round)))
		ctx, stop := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		began := make(chan struct{}, 2)
		for range 2 {
			reading.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					time.Sleep(testenv.Form(100*time.Microsecond, 0))
					if err := readThrough(path, 8); err != nil {
						t.Error(err)
					}
					if n == 0 {
						began <- struct{}{}
					}
				}
			})
		}
		<-began
		<-began
		w.sync("")
		stop()
		reading.Wait()
	}
	if clones := w.adoptedClones(); len(clones) != rounds {
		t.Errorf("%d clones are kept", len(clones))
	}
}

// TestExchangeIsAtomic reads a name in a loop while it is exchanged with another, often enough to
// detect two separate renames.
func TestExchangeIsAtomic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, other := filepath.Join(dir, "name"), filepath.Join(dir, "other")
	testenv.Must(0, os.Mkdir(path, 0o755))(t)
	testenv.Must(0, os.Symlink(t.TempDir(), other))(t)
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	began := make(chan struct{})
	reading.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
				return
			}
			if n == 0 {
				close(began)
			}
		}
	})
	<-began
	for range 5000 {
		testenv.Must(0, exchange(path, other))(t)
	}
	stop()
	reading.Wait()
}

// readThrough opens the name once and reads everything below the open folder. Unlike a resolved path, an
// open folder stays valid if the clone is moved.
func readThrough(path string, want int) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	var first string
	for i := range want {
		content, err := root.ReadFile(fmt.Sprintf("dir%d/file", i))
		if err != nil {
			return err
		}
		if i == 0 {
			first = string(content)
		}
		if string(content) != first {
			return fmt.Errorf("file %d has version %s, not %s", i, content, first)
		}
	}
	return nil
}

func TestKilledDuringAdoption(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"bound", "listed", "confirmed", "beside", "exchanged", "flipped"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			path := w.clone(w.git.URL(widgets))
			testenv.Must(0, os.WriteFile(filepath.Join(path, "untracked"), []byte("mine"), 0o644))(t)
			was := snapshot(t, path)
			commit := w.push(map[string]string{"a": "2"})

			w.dieAt(step)

			if adopted := step == "exchanged" || step == "flipped"; adopted {
				w.mustBeSound(widgets, commit)
			} else {
				mustKeep(t, path, was)
			}
			w.sync("")
			w.mustBeSound(widgets, commit)
			testenv.Must(w.volume.GC(t.Context(), GCRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1)}))(t)
			entries := testenv.Must(os.ReadDir(w.volume.folder(repoPath(t, widgets)).adopted()))(t)
			if len(entries) != 1 || !entries[0].IsDir() {
				t.Fatalf("kept: %v", entries)
			}
			mustKeep(t, w.path(w.adoptedClones()[0].Path), was)
			mustBeTidy(t, w)
		})
	}
}

func TestClonesThatCannotBeAdopted(t *testing.T) {
	t.Parallel()
	secret := "hunter2"
	rewrite := func(t *testing.T, path, url string) {
		testenv.Must(gitserver.Git(t.Context(), path, "", "config", "remote.origin.url", url))(t)
	}
	for name, tc := range map[string]struct {
		arrange func(t *testing.T, w *world, path string)
		says    string
	}{
		"of another remote": {func(t *testing.T, w *world, path string) { rewrite(t, path, w.git.URL("acme/other")) }, "another remote"},
		"with a secret in another remote's URL": {func(t *testing.T, _ *world, path string) {
			rewrite(t, path, "https://ada:"+secret+"@elsewhere.example/"+secret+".git")
		}, "another remote"},
		"of a folder": {func(t *testing.T, _ *world, path string) { rewrite(t, path, "/srv/git/acme/widgets") }, "another remote"},
		"without a remote": {func(t *testing.T, _ *world, path string) {
			testenv.Must(gitserver.Git(t.Context(), path, "", "remote", "remove", "origin"))(t)
		}, "without a remote"},
		"with worktrees": {func(t *testing.T, _ *world, path string) {
			testenv.Must(gitserver.Git(t.Context(), path, "", "worktree", "add", "--quiet", filepath.Join(t.TempDir(), "more")))(t)
		}, "worktrees"},
		"a worktree, or a submodule": {func(t *testing.T, _ *world, path string) {
			testenv.Must(0, os.Rename(filepath.Join(path, ".git"), path+".gitdir"))(t)
			testenv.Must(0, os.WriteFile(filepath.Join(path, ".git"), []byte("gitdir: "+path+".gitdir\n"), 0o644))(t)
		}, "not a clone"},
		"a bare folder": {func(t *testing.T, _ *world, path string) {
			testenv.Must(0, os.RemoveAll(filepath.Join(path, ".git")))(t)
		}, "not a clone"},
		"a damaged configuration": {func(t *testing.T, _ *world, path string) {
			testenv.Must(0, os.WriteFile(filepath.Join(path, ".git/config"), []byte("[remote \"origin\n\turl = https://"+secret+"@"), 0o644))(t)
		}, "cannot be read"},
		"a configuration that is a pipe": {func(t *testing.T, _ *world, path string) {
			testenv.Must(0, os.Remove(filepath.Join(path, ".git/config")))(t)
			testenv.Must(0, unix.Mkfifo(filepath.Join(path, ".git/config"), 0o644))(t)
		}, "without a remote"},
		"where names cannot be exchanged": {func(_ *testing.T, w *world, _ string) {
			w.volume.exchange = func(string, string) error { return &os.LinkError{Err: unix.EINVAL} }
		}, "cannot exchange"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			path := w.clone(w.git.URL(widgets))
			tc.arrange(t, w, path)
			before := testenv.Must(os.Lstat(path))(t)
			asked := w.git.Stats(widgets).InfoRefs

			_, err := w.trySync("")

			testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
			if !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "not touched") {
				t.Errorf("the error does not say why, and what to do: %v", err)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats what the clone's configuration says: %v", err)
			}
			if !os.SameFile(before, testenv.Must(os.Lstat(path))(t)) {
				t.Error("it was replaced")
			}
			if w.git.Stats(widgets).InfoRefs != asked {
				t.Error("the remote was asked")
			}
			mustBeTidy(t, w)
		})
	}
}

func TestRemotesOfAClone(t *testing.T) {
	t.Parallel()
	for origin, same := range map[string]bool{
		"https://ada:hunter2@git.example.org/acme/widgets":  true,
		"git@git.example.org:acme/widgets.git":              true,
		"ssh://git@git.example.org/acme/widgets.git":        true,
		"http://git.example.org/acme/widgets/":              true,
		"git@git.example.org:acme/gadgets.git":              false,
		"https://example.org/acme/widgets":                  false,
		"./git.example.org:acme/widgets":                    false,
		"/git.example.org/acme/widgets":                     false,
		"https://git.example.org/acme/widgets/../gadgets":   false,
		"https://git.example.org.evil.example/acme/widgets": false,
	} {
		path := t.TempDir()
		testenv.Must(0, os.Mkdir(filepath.Join(path, ".git"), 0o755))(t)
		testenv.Must(0, os.WriteFile(filepath.Join(path, ".git/HEAD"), []byte("ref: refs/heads/main\n"), 0o644))(t)
		config := "[core]\n\tbare = false\n[include]\n\tpath = /dev/zero\n[remote \"origin\"]\n\turl = " + origin + "\n"
		testenv.Must(0, os.WriteFile(filepath.Join(path, ".git/config"), []byte(config), 0o644))(t)
		if why := whyNotAdopted(path, "https://git.example.org/acme/widgets.git"); (why == "") != same {
			t.Errorf("%s: %q", origin, why)
		}
	}
}

// TestFailedExchangeKeepsTheClone makes the exchange at the published path fail, first before and then after it takes effect.
func TestFailedExchangeKeepsTheClone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	path := w.clone(w.git.URL(widgets))
	w.volume.exchange = func(a, b string) error {
		if b == path {
			return &os.LinkError{Err: unix.EXDEV}
		}
		return exchange(a, b)
	}

	_, err := w.trySync("")

	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
	if info := testenv.Must(os.Lstat(path))(t); !info.IsDir() {
		t.Error("the clone is gone")
	}
	if entries := testenv.Must(os.ReadDir(w.volume.folder(repoPath(t, widgets)).adopted()))(t); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
	w.volume.exchange = func(a, b string) error { // as a network file system may do
		return errors.Join(exchange(a, b), unix.EIO)
	}
	w.volume.cfg.Step = nil
	testenv.Must(0, w.volume.adopt(w.volume.folder(repoPath(t, widgets)), path, "target", 9))(t)
	if target := testenv.Must(os.Readlink(path))(t); target != "target" {
		t.Errorf("the link leads to %s", target)
	}
}
