package volume

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Parallel(8) // most tests wait for the disk and for git
	testenv.Main(m)
}

// world is a volume, a Git server with the repository acme/widgets, and a source of fences.
type world struct {
	t      *testing.T
	git    *gitserver.Server
	volume *Volume
	opened []*Volume // all, each of which deletes in the background
	fence  atomic.Uint64
}

const widgets = "acme/widgets"

func newWorld(t *testing.T, opts ...gitserver.Option) *world {
	t.Helper()
	server, err := gitserver.Start(t.TempDir(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	w := &world{t: t, git: server}
	w.volume = w.open(t.TempDir(), Config{})
	return w
}

func (w *world) open(root string, cfg Config) *Volume {
	w.t.Helper()
	v, err := OpenVolume(root, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(v.Close)
	w.opened = append(w.opened, v)
	return v
}

// create makes the repository acme/widgets with these files.
func (w *world) create(files map[string]string) string {
	w.t.Helper()
	return testenv.Must(w.git.Create(w.t.Context(), widgets, files))(w.t)
}

func (w *world) commit(branch string, edit gitserver.Edit) string {
	w.t.Helper()
	return testenv.Must(w.git.Commit(w.t.Context(), widgets, branch, edit))(w.t)
}

// push commits files to main.
func (w *world) push(files map[string]string) string {
	w.t.Helper()
	return w.commit(gitserver.Main, gitserver.Edit{Write: files})
}

func (w *world) request(ref string) SyncRequest {
	w.t.Helper()
	return SyncRequest{
		Repo: repoPath(w.t, widgets), URL: w.git.URL(widgets),
		Ref: testenv.Must(events.ParseRef(ref))(w.t), Fence: w.fence.Add(1),
	}
}

func (w *world) trySync(ref string) (SyncResult, error) {
	w.t.Helper()
	return w.volume.Sync(w.t.Context(), w.request(ref))
}

func (w *world) sync(ref string) SyncResult {
	w.t.Helper()
	return testenv.Must(w.trySync(ref))(w.t)
}

// path returns the full path of a published name or of something below it.
func (w *world) path(elem ...string) string {
	return filepath.Join(append([]string{w.volume.Root()}, elem...)...)
}

func (w *world) gitIn(name string, args ...string) string {
	w.t.Helper()
	return testenv.Must(gitserver.Git(w.t.Context(), w.path(name), "", args...))(w.t)
}

// mustBeSound checks a published name with Git itself.
func (w *world) mustBeSound(name, commit string) {
	w.t.Helper()
	for line := range strings.Lines(w.gitIn(name, "status", "--porcelain=v2", "--branch")) {
		line = strings.TrimSuffix(line, "\n")
		if oid, ok := strings.CutPrefix(line, "# branch.oid "); ok && oid != commit {
			w.t.Errorf("%s: HEAD is %s, want %s", name, oid, commit)
		} else if !strings.HasPrefix(line, "# ") {
			w.t.Errorf("%s: git status is not clean: %s", name, line)
		}
	}
	w.gitIn(name, "fsck", "--full", "--strict")
}

// mustRead checks that a published name has exactly these files.
func (w *world) mustRead(name string, want map[string]string) {
	w.t.Helper()
	got := readTree(w.t, w.path(name))
	for path, content := range want {
		if got[path] != content {
			w.t.Errorf("%s: file %q is %q, want %q", name, path, got[path], content)
		}
		delete(got, path)
	}
	for path := range got {
		w.t.Errorf("%s: unexpected file %q", name, path)
	}
}

// readTree reads a tree except its .git. A symbolic link reads as "→ target".
func readTree(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		name := strings.TrimPrefix(path, root+"/")
		if d.Type() == fs.ModeSymlink {
			target, err := os.Readlink(path)
			files[name] = "→ " + target
			return err
		}
		content, err := os.ReadFile(path)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func repoPath(t *testing.T, s string) events.RepoPath {
	t.Helper()
	return testenv.Must(events.ParseRepoPath(s))(t)
}
