package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

// workspace records a workspace of the published tree, as package workspace does.
func (w *world) workspace(id string) Workspace {
	w.t.Helper()
	t := testenv.Must(tree.Open(w.volume.Root(), widgets))(w.t)
	defer closeTree(w.t, t)
	return testenv.Must(RecordWorkspace(Workspace{ID: id, Name: widgets, Ref: t.Ref(), Commit: t.Commit(), Source: t.Dir(), Dir: "/work/" + id, Host: "here"}))(w.t)
}

func (w *world) recorded() (found []string) {
	w.t.Helper()
	for workspace, err := range w.volume.Workspaces() {
		testenv.Must(0, err)(w.t)
		found = append(found, workspace.ID+" "+workspace.Source)
	}
	return found
}

func TestWorkspacePinsTreeUntilForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.create(map[string]string{"a": "1"})
	w.sync("")
	pinned := w.workspace("one")
	if found := fmt.Sprint(w.recorded()); found != "[one "+pinned.Source+"]" {
		t.Errorf("the volume has the workspaces %s", found)
	}
	if n := w.volume.Usage(repoPath(t, widgets)).Workspaces; n != 1 {
		t.Errorf("the usage counts %d workspaces", n)
	}
	for _, full := range []bool{true, false} {
		var total Total
		total.Add(testenv.Must(w.volume.GC(t.Context(), GCRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Full: full}))(t).Usage)
		if total.Workspaces != 1 {
			t.Errorf("garbage collection counts %d workspaces", total.Workspaces)
		}
	}
	for _, content := range []string{"2", "3"} {
		w.push(map[string]string{"a": content})
		w.sync("")
		w.sync("")
	}
	if !isThere(t, pinned.Source) {
		t.Fatal("the tree of a workspace is gone")
	}
	testenv.Must(0, ForgetWorkspace(pinned))(t)
	testenv.Must(0, ForgetWorkspace(pinned))(t) // nothing is left to do
	w.push(map[string]string{"a": "4"})
	w.sync("")
	if isThere(t, pinned.Source) {
		t.Error("the tree of a forgotten workspace is still there")
	}
}

func TestUnreadableWorkspacePinsAllTrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.create(map[string]string{"a": "1"})
	w.sync("")
	pinned := w.workspace("one")
	for _, content := range []string{"", "null", `{"tree": "../../elsewhere"}`, `{"id": "two", "tree": "x", "dir": "/work/one"}`, `{"id": "one", "tree": "x", "dir": "work"}`} {
		testenv.Must(0, os.WriteFile(pinned.Record, []byte(content), 0o644))(t)
		w.push(map[string]string{"a": "2" + content})
		w.sync("")
		w.sync("")
		if !isThere(t, pinned.Source) {
			t.Fatalf("the tree is gone despite the record %q", content)
		}
		fence := w.fence.Add(1)
		report := testenv.Must(w.volume.Verify(t.Context(), VerifyRequest{Repo: repoPath(t, widgets), Fence: fence}))(t)
		if report.Found != 1 || !strings.Contains(report.Problems[0].What, "pins all trees") {
			t.Errorf("verify reports %+v", report.Problems)
		}
	}
}

// The names of a repository that has moved away stay published while another one is at its path, to which nothing must be pushed.
func TestTreeOfMovedRepositoryHasNoRemote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	source := w.workspace("one").Source
	f := w.volume.folder(repoPath(t, widgets))
	b, _, err := f.readBinding()
	testenv.Must(0, err)(t)
	if remote := testenv.Must(RemoteOf(source))(t); remote != b.Remote {
		t.Errorf("the remote is %q, want %q", remote, b.Remote)
	}
	b.Remote, b.MovedAway = "https://forge.example/another/one.git", &tombstone{To: repoPath(t, "acme/moved"), At: time.Now(), Fence: w.fence.Load()}
	testenv.Must(0, f.writeBinding(b))(t)
	if remote := testenv.Must(RemoteOf(source))(t); remote != "" {
		t.Errorf("the tree of the repository that has moved has the remote %q", remote)
	}
}

func TestVerifyReportsWorkspaceWithoutTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	pinned := w.workspace("one")
	w.push(map[string]string{"a": "2"})
	w.sync("")
	testenv.Must(0, os.RemoveAll(pinned.Source))(t)
	report := testenv.Must(w.volume.Verify(t.Context(), VerifyRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1)}))(t)
	if report.Found != 1 || !strings.Contains(report.Problems[0].What, "of the workspace at /work/one on here is missing") {
		t.Errorf("verify reports %+v", report.Problems)
	}
}

func TestRemovedRepositoryKeepsTreeOfWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	pinned := w.workspace("one")
	remove := func() (bool, error) {
		return w.volume.Remove(t.Context(), RemoveRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Force: true})
	}
	_, err := remove()
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	if isThere(t, filepath.Join(w.volume.Root(), widgets)) || !isThere(t, pinned.Source) {
		t.Error("want no name, and the tree of the workspace")
	}
	testenv.Must(0, ForgetWorkspace(pinned))(t)
	if removed, err := remove(); !removed || err != nil {
		t.Errorf("removed: %v, %v", removed, err)
	}
	if found := w.recorded(); len(found) > 0 || isThere(t, filepath.Dir(pinned.Record)) {
		t.Errorf("left over: %v", found)
	}
}

// A workspace may use objects of the store that no tree needs: git finds there what it fetches.
func TestPruneKeepsObjectsForWorkspaces(t *testing.T) {
	t.Parallel()
	for name, pin := range map[string]func(w *world) (unpin func()){
		"lock": func(w *world) func() {
			reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(w.t)
			file := testenv.Must(PinObjects(w.t.Context(), reader.Dir()))(w.t)
			return func() {
				_ = unix.Flock(int(file.Fd()), unix.LOCK_UN) // a child of another test may share the open file
				file.Close()
				reader.Close()
			}
		},
		"record": func(w *world) func() {
			pinned := w.workspace("one")
			return func() { testenv.Must(0, ForgetWorkspace(pinned))(w.t) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(w.volume.Root(), Config{Grace: 1})
			w.create(map[string]string{"a": "0"})
			w.sync("")
			unpin := pin(w)
			for i := range 5 {
				w.push(map[string]string{"a": fmt.Sprint("next ", i)})
				w.sync("")
			}
			w.sync("")
			f := w.volume.folder(repoPath(t, widgets))
			s := testenv.Must(f.currentStore(nil))(t)
			all := looseCount(t, s)
			testenv.Must(0, w.prune(f, w.fence.Load()))(t)
			if n := looseCount(t, s); n != all {
				t.Errorf("%d of %d objects are left while a workspace uses the store", n, all)
			}
			var kept int64 // decides when to prune again
			_ = testenv.Must(fmt.Sscan(string(testenv.Must(os.ReadFile(filepath.Join(s.dir, prunedName)))(t)), &kept))(t)
			if loose := testenv.Must(s.sortLoose(nil))(t); kept != loose.spare {
				t.Errorf("%d of %d bytes count as kept while a workspace uses the store", kept, loose.spare)
			}
			unpin()
			testenv.Must(0, w.prune(f, w.fence.Load()))(t)
			if n := looseCount(t, s); n >= all {
				t.Errorf("all %d objects are left without a workspace", n)
			}
		})
	}
}

func TestTreeOfViewHasNoObjects(t *testing.T) {
	t.Parallel()
	if _, err := ObjectsPin(t.TempDir()); err == nil || !strings.Contains(err.Error(), "use the name of its repository, without the view") {
		t.Errorf("got %v", err)
	}
}

func TestWorkspaceOnReadOnlyVolume(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root can write everywhere")
	}
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	defer reader.Close()
	folder := folderOf(reader.Dir()).dir
	testenv.Must(0, os.Chmod(folder, 0o555))(t)
	t.Cleanup(func() { _ = os.Chmod(folder, 0o755) })
	if _, err := RecordWorkspace(Workspace{ID: "one", Source: reader.Dir()}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("recorded: %v", err)
	}
}
