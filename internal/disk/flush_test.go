package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/testenv"
)

func TestFlush(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	testenv.Must(0, os.WriteFile(file, []byte("x"), 0o644))(t)
	testenv.Must(0, os.Symlink("nowhere", link))(t)
	files := []string{file, link}
	for n := range flushers + fewFolders { // many files and folders
		path := filepath.Join(dir, fmt.Sprint("d", n), "file")
		testenv.Must(0, os.Mkdir(filepath.Dir(path), 0o755))(t)
		testenv.Must(0, os.WriteFile(path, []byte("x"), 0o644))(t)
		files = append(files, path)
	}
	testenv.Must(0, Flush(t.Context(), dir, files))(t)
	testenv.Must(0, FlushChanged(files, []string{dir}))(t)
	testenv.Must(0, FlushChanged(nil, nil))(t)
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

// must fails the test if err is set: testenv.Must(f())(t).
