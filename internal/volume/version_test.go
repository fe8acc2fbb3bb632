package volume

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

func TestNewerLayoutIsRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w := newWorld(t)
	w.open(root, Config{})
	path := filepath.Join(root, adminDir, layoutName)
	if content := string(testenv.Must(os.ReadFile(path))(t)); content != "1\n" {
		t.Errorf("the layout is %q", content)
	}
	testenv.Must(0, os.WriteFile(path, []byte("2\n"), 0o644))(t)
	_, err := OpenVolume(root, Config{})
	testenv.MustFail(t, err, events.ClassVolume, events.Permanent)
	if !strings.Contains(err.Error(), "has layout 2, but this version supports layouts up to 1: run the previous version or a newer one") {
		t.Errorf("%v", err)
	}
	testenv.Must(0, os.WriteFile(path, []byte("two"), 0o644))(t)
	_, err = OpenVolume(root, Config{})
	testenv.MustFail(t, err, events.ClassVolume, events.Permanent)
	testenv.Must(0, os.Remove(path))(t)
	w.open(root, Config{})
	if content := string(testenv.Must(os.ReadFile(path))(t)); content != "1\n" {
		t.Errorf("the layout is %q", content)
	}
}
