package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestFlush(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	must(0, os.WriteFile(file, []byte("x"), 0o644))(t)
	must(0, os.Symlink("nowhere", link))(t)
	files := []string{file, link}
	for n := range flushers + fewFolders { // many files and folders
		path := filepath.Join(dir, fmt.Sprint("d", n), "file")
		must(0, os.Mkdir(filepath.Dir(path), 0o755))(t)
		must(0, os.WriteFile(path, []byte("x"), 0o644))(t)
		files = append(files, path)
	}
	must(0, Flush(t.Context(), dir, files))(t)
	must(0, FlushChanged(files, []string{dir}))(t)
	must(0, FlushChanged(nil, nil))(t)
	if orderOf(dir) != volatile {
		if err := Flush(t.Context(), dir, []string{filepath.Join(dir, "absent")}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("missing file: %v", err)
		}
	}
}

func TestOrderOf(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err == nil && orderOf("/dev/shm") != volatile {
		t.Error("tmpfs survives a power cut")
	}
	if orderOf("/proc") != unordered {
		t.Error("an unknown file system orders names")
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
