package volume

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

// at returns the result event of a sync.
func (w *world) at(res SyncResult) events.Result {
	w.t.Helper()
	return events.Result{Type: events.ResultSynced, Repo: repoPath(w.t, widgets), Ref: res.Ref, After: res.After, Path: res.Path, Tree: res.Tree}
}

func isThere(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestPinnedTreeOutlivesGrace(t *testing.T) {
	w := newWorld(t)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.create(map[string]string{"a": "1"})
	first := w.sync("")
	byName := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	byResult := testenv.Must(tree.OpenResult(w.volume.Root(), w.at(first)))(t)
	for _, reader := range []*tree.Tree{byName, byResult} {
		w.push(map[string]string{"a": "2"})
		w.sync("")
		w.sync("")
		if content, err := os.ReadFile(filepath.Join(reader.Dir(), "a")); string(content) != "1" {
			t.Fatalf("the pinned tree reads %q, %v", content, err)
		}
		closeTree(t, reader)
	}
	w.sync("")
	if isThere(t, w.path(first.Tree)) {
		t.Error("the tree is still there, with nobody to pin it")
	}
	if _, err := tree.OpenResult(w.volume.Root(), w.at(first)); !errors.Is(err, tree.ErrGone) {
		t.Errorf("opening it: %v", err)
	}
	mustBeTidy(t, w)
}

func TestClaim(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	res := w.sync("")
	f, name := w.volume.folder(repoPath(t, widgets)), filepath.Base(res.Tree)
	reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	if _, ok, err := f.claim(name); ok || err != nil {
		t.Errorf("claimed a pinned tree: %v, %v", ok, err)
	}
	closeTree(t, reader)
	release, ok, err := f.claim(name)
	if !ok || err != nil {
		t.Fatalf("not claimed: %v, %v", ok, err)
	}
	if _, err := tree.OpenResult(w.volume.Root(), w.at(res)); !errors.Is(err, tree.ErrGone) {
		t.Errorf("a claimed tree was opened: %v", err)
	}
	if _, ok, err := f.claim(name); ok || err != nil {
		t.Errorf("claimed twice: %v, %v", ok, err)
	}
	release()
	closeTree(t, testenv.Must(tree.OpenResult(w.volume.Root(), w.at(res)))(t))
}

func TestRemovalWaitsForPinnedTrees(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	first := w.sync("")
	reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	w.push(map[string]string{"a": "2"})
	second := w.sync("")
	req := w.removal()
	req.Force = true

	_, err := w.volume.Remove(t.Context(), req)

	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	if isThere(t, w.path(widgets)) || isThere(t, w.path(second.Tree)) {
		t.Error("still published, or a tree that nobody has pinned is still there")
	}
	if got := testenv.Must(os.ReadFile(filepath.Join(reader.Dir(), "a")))(t); string(got) != "1" {
		t.Errorf("the pinned tree reads %q", got)
	}
	w.gitIn(first.Tree, "fsck", "--full", "--strict")
	if _, err := tree.Open(w.volume.Root(), widgets); !errors.Is(err, tree.ErrNotPublished) {
		t.Errorf("opened by name: %v", err)
	}
	closeTree(t, reader)
	req.Fence = w.fence.Add(1)
	if removed := testenv.Must(w.volume.Remove(t.Context(), req))(t); !removed {
		t.Error("the removal was not taken up again")
	}
	if left := testenv.Must(os.ReadDir(w.path(".lockstep/repos/acme/widgets")))(t); len(left) != 3 { // fence, lock, trash
		t.Errorf("still there: %v", left)
	}
	mustBeTidy(t, w)
}

// TestPinnedTreesStayWhole opens trees by name and by result from many readers, some in separate processes,
// while trees are published and recycled without a grace period. Each open tree must stay complete, also by
// path, until it is closed, and opening the name must never fail.
func TestPinnedTreesStayWhole(t *testing.T) {
	if root := os.Getenv("LOCKSTEP_TEST_PIN_ROOT"); root != "" {
		pinInProcess(t, root)
		return
	}
	const processes = 2
	versions, readers := testenv.Form(5, 12), testenv.Form(2, 4)
	w := newWorld(t)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.create(versionFiles(0))
	var last, before atomic.Pointer[events.Result]
	note := func(res SyncResult) { r := w.at(res); before.Store(last.Swap(&r)) }
	note(w.sync(""))
	note(w.sync(""))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var g errgroup.Group
	var opened, gone atomic.Int64
	for n := range readers {
		g.Go(func() error {
			for ctx.Err() == nil {
				for _, result := range []*events.Result{last.Load(), before.Load()} {
					if err := readPinned(w.volume.Root(), result, n%2 == 0, &opened, &gone); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	var children sync.WaitGroup
	var counts [processes]string
	for n := range processes {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPinnedTreesStayWhole$", "-test.v")
		cmd.Env = append(os.Environ(), "LOCKSTEP_TEST_PIN_ROOT="+w.volume.Root())
		stdin := testenv.Must(cmd.StdinPipe())(t)
		stdout := testenv.Must(cmd.StdoutPipe())(t)
		testenv.Must(0, cmd.Start())(t)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() && lines.Text() != "reading" {
		}
		children.Go(func() {
			<-ctx.Done()
			_ = stdin.Close()
			rest, _ := io.ReadAll(stdout)
			counts[n] = string(rest)
			if err := cmd.Wait(); err != nil {
				t.Errorf("reader process: %v\n%s", err, rest)
			}
		})
	}
	for n := 0; n < versions || opened.Load() < int64(versions) && n < 20*versions; n++ {
		w.push(versionFiles(n + 1))
		note(w.sync(""))
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	children.Wait()
	t.Logf("here %d opened, %d gone before they were; there %s", opened.Load(), gone.Load(), strings.Join(counts[:], ", "))
	if opened.Load() < int64(versions) { // how many are gone depends on the scheduler
		t.Errorf("%d trees opened: that proves nothing", opened.Load())
	}
	w.sync("")
	if left := testenv.Must(os.ReadDir(w.volume.folder(repoPath(t, widgets)).trees()))(t); len(left) != 1 {
		t.Errorf("%d trees are left, with nobody to pin them", len(left))
	}
}

const filesOfVersion = 12

func versionFiles(n int) map[string]string {
	files := map[string]string{}
	for i := range filesOfVersion {
		files[fmt.Sprintf("dir%d/file%d", i%3, i)] = fmt.Sprint(n)
	}
	return files
}

// pinInProcess is the main function of a reader process. It reads until its standard input ends.
func pinInProcess(t *testing.T, root string) {
	var opened, gone atomic.Int64
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	fmt.Println("reading")
	for {
		select {
		case <-ended:
			fmt.Printf("%d opened", opened.Load())
			return
		default:
		}
		if err := readPinned(root, nil, true, &opened, &gone); err != nil {
			t.Fatal(err)
		}
	}
}

// readPinned opens a tree, reads it several times by path and through FS, and closes it.
func readPinned(root string, r *events.Result, byName bool, opened, gone *atomic.Int64) error {
	time.Sleep(testenv.Form(time.Millisecond, 0))
	open := func() (*tree.Tree, error) { return tree.OpenResult(root, *r) }
	if byName {
		open = func() (*tree.Tree, error) { return tree.Open(root, widgets) }
	}
	t, err := open()
	if errors.Is(err, tree.ErrGone) && !byName {
		gone.Add(1)
		return nil
	}
	if err != nil {
		return err
	}
	opened.Add(1)
	for range 3 {
		if err := readOneVersion(t.Dir(), filesOfVersion); err != nil {
			return errors.Join(fmt.Errorf("by path: %w", err), t.Close())
		}
		if err := countFiles(t.FS()); err != nil {
			return errors.Join(fmt.Errorf("by FS: %w", err), t.Close())
		}
	}
	if now, err := os.ReadFile(filepath.Join(t.Dir(), ".git", "lockstep-commit")); strings.TrimSpace(string(now)) != t.Commit() {
		return errors.Join(fmt.Errorf("commit %s has become %q: %w", t.Commit(), now, err), t.Close())
	}
	return t.Close()
}

func countFiles(fsys fs.FS) error {
	names, err := fs.Glob(fsys, "dir*/file*")
	if err != nil || len(names) != filesOfVersion {
		return fmt.Errorf("%d files: %w", len(names), err)
	}
	_, err = fs.ReadFile(fsys, names[0])
	return err
}

// TestPinEndsWithProcess checks that killing a reader releases its pins.
func TestPinEndsWithProcess(t *testing.T) {
	w := newWorld(t)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.create(map[string]string{"a": "1"})
	first := w.sync("")
	pin := checkout.GitDirOf(w.path(first.Tree)).Pin()
	cmd := exec.Command("flock", "--shared", "--no-fork", pin, "sh", "-c", "echo pinned; read _")
	stdin := testenv.Must(cmd.StdinPipe())(t)
	defer stdin.Close()
	stdout := testenv.Must(cmd.StdoutPipe())(t)
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "pinned\n" {
		t.Fatalf("%q, %v", line, err)
	}
	w.push(map[string]string{"a": "2"})
	w.sync("")
	w.sync("")
	if !isThere(t, w.path(first.Tree)) {
		t.Error("the tree is gone, though another program has it pinned")
	}
	testenv.Must(0, cmd.Process.Signal(unix.SIGKILL))(t)
	_ = cmd.Wait()
	w.sync("")
	if isThere(t, w.path(first.Tree)) {
		t.Error("the tree is still there, pinned by a dead process")
	}
}

// TestPinsThroughAReadOnlyMount is skipped if mounting is not permitted.
func TestPinsThroughAReadOnlyMount(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	first := w.sync("")
	view := t.TempDir()
	if err := unix.Mount(w.volume.Root(), view, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(view, unix.MNT_DETACH) })
	testenv.Must(0, unix.Mount("", view, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))(t)
	if err := os.WriteFile(filepath.Join(view, strconv.Itoa(os.Getpid())), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Fatalf("the mount takes writes: %v", err)
	}
	reader := testenv.Must(tree.Open(view, widgets))(t)
	defer reader.Close()
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.push(map[string]string{"a": "2"})
	w.sync("")
	w.sync("")
	if !isThere(t, filepath.Join(view, first.Tree)) || !isThere(t, filepath.Join(reader.Dir(), "a")) {
		t.Error("a pin taken through a read-only mount did not count")
	}
}

// closeTree closes a tree, and releases its pin although a child of another test may share the open file.
func closeTree(t testing.TB, opened *tree.Tree) {
	t.Helper()
	if pin := opened.Pin(); pin != nil {
		testenv.Must(0, unix.Flock(int(pin.Fd()), unix.LOCK_UN))(t)
	}
	testenv.Must(0, opened.Close())(t)
}
