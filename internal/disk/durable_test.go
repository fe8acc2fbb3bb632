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
			t.Errorf("a file that is not there: %v", err)
		}
	}
	if _, err := os.Stat("/dev/shm"); err == nil && !keepsOrder("/dev/shm") {
		t.Error("what does not outlive the power needs no order")
	}
	if keepsOrder("/proc") {
		t.Error("who knows in which order that is kept")
	}
}

// must returns a function, so that it can take both a pair of results and a test.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
