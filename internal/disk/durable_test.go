package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestFlush(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	must(0, os.WriteFile(file, []byte("x"), 0o644))(t)
	must(0, os.Symlink("nowhere", link))(t)
	must(0, Flush(dir, []string{file, link}))(t)
	must(0, Flush(dir, make([]string, fewFiles+1)))(t) // with the whole file system
	if keepsOrder(dir) {
		if err := Flush(dir, []string{filepath.Join(dir, "absent")}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("missing file: %v", err)
		}
	}
	if _, err := os.Stat("/dev/shm"); err == nil && !keepsOrder("/dev/shm") {
		t.Error("tmpfs keeps order")
	}
	if keepsOrder("/proc") {
		t.Error("procfs does not keep order")
	}
}

// must fails the test if err is set: must(f())(t).
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
