package gitrepo

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
	must(0, flush(dir, []string{file, link}))(t)
	must(0, flush(dir, make([]string, fewFiles+1)))(t) // with the whole file system
	if keepsOrder(dir) {
		if err := flush(dir, []string{filepath.Join(dir, "absent")}); !errors.Is(err, os.ErrNotExist) {
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
