package volume

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// mountSmall mounts a file system of the given size. It skips the test if mounting is not permitted.
func mountSmall(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("needs a file system of its own to fill: mount tmpfs: %v", err)
	}
	t.Cleanup(func() { testenv.Must(0, syscall.Unmount(dir, syscall.MNT_DETACH))(t) })
	return dir
}

func TestFullVolume(t *testing.T) {
	t.Parallel()
	root := mountSmall(t, "1m")
	w := newWorld(t)
	w.volume = w.open(root, Config{})
	first := w.create(map[string]string{"a": "1"})
	w.sync("")
	noise := make([]byte, 1<<20)
	testenv.Must(testenv.Must(os.Open("/dev/urandom"))(t).Read(noise))(t)
	w.push(map[string]string{"noise": string(noise)})

	_, err := w.trySync("")

	testenv.MustFail(t, err, events.ClassVolume, events.Retryable)
	if !strings.Contains(err.Error(), "free space") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	w.mustBeSound(widgets, first)
	mustBeTidy(t, w)
	last := w.push(map[string]string{"noise": "less"})
	w.sync("")
	w.mustBeSound(widgets, last)
}

func TestReadOnlyVolume(t *testing.T) {
	t.Parallel()
	root := mountSmall(t, "4m")
	w := newWorld(t)
	w.volume = w.open(root, Config{})
	first := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2"})
	testenv.Must(0, syscall.Mount("", root, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))(t)

	_, err := w.trySync("")

	testenv.MustFail(t, err, events.ClassVolume, events.Retryable)
	if !strings.Contains(err.Error(), "read-write") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	_, err = OpenVolume(root, Config{})
	testenv.MustFail(t, err, events.ClassVolume, events.Retryable)
	w.mustBeSound(widgets, first)
}

func TestFileInPlaceOfTreesFolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, os.MkdirAll(f.dir, 0o755))(t)
	testenv.Must(0, os.WriteFile(f.trees(), nil, 0o644))(t)
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassVolume, events.Retryable)
}

// TestNoGitIsStarted removes git from the PATH; only the test server may run it.
func TestNoGitIsStarted(t *testing.T) {
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	path := os.Getenv("PATH")
	t.Setenv("PATH", t.TempDir())
	if _, err := exec.LookPath("git"); err == nil {
		t.Fatal("git is still to be found")
	}
	w.sync("")
	t.Setenv("PATH", path)
	w.mustBeSound(widgets, commit)
}

func TestNothingIsWrittenBelowMountPoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "1"})
	w.sync("")
	away := w.volume.Root() + "-away"
	testenv.Must(0, os.Rename(w.volume.Root(), away))(t) // unmounted
	testenv.Must(0, os.Mkdir(w.volume.Root(), 0o755))(t)
	_, err := w.volume.Sync(t.Context(), w.request(""))
	testenv.MustFail(t, err, events.ClassVolume, events.Retryable)
	if entries := testenv.Must(os.ReadDir(w.volume.Root()))(t); len(entries) != 0 {
		t.Errorf("%v was written below the mount point", entries)
	}
	testenv.Must(0, os.Remove(w.volume.Root()))(t)
	testenv.Must(0, os.Rename(away, w.volume.Root()))(t)
	w.sync("")
	w.mustBeSound(widgets, main)
}
