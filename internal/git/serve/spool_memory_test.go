package serve

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/testenv"
)

// unusableFolders returns folders in which the files of spools cannot be kept, or not completely.
func unusableFolders(t *testing.T) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	testenv.Must(0, os.WriteFile(file, nil, 0o600))(t)
	folders := map[string]string{
		"missing":    filepath.Join(t.TempDir(), "missing"),
		"not a dir":  file,
		"not usable": "/proc/self",
	}
	for name, size := range map[string]string{"full": "4k", "small": "2m"} {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
			t.Logf("without %s: mount: %v", name, err)
			continue
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		folders[name] = dir
	}
	return folders
}

// TestCloneWithoutFolder clones a repository with a pack that is longer than the head of a spool, and warns at the start.
func TestCloneWithoutFolder(t *testing.T) {
	for name, dir := range unusableFolders(t) {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			w := newWorld(t, func(cfg *Config) { cfg.tempDir, cfg.Log = dir, slog.New(slog.NewTextHandler(&log, nil)) })
			if warned := strings.Contains(log.String(), "no usable temporary folder"); warned != (name != "small") {
				t.Errorf("logged %q", log.String())
			}
			w.big(4 << 20)
			clone := filepath.Join(t.TempDir(), "clone")
			w.git(t.TempDir(), "clone", "-q", w.url(widgets), clone)
			if size := testenv.Must(os.Stat(filepath.Join(clone, "big")))(t).Size(); size != 4<<20 {
				t.Errorf("%d bytes", size)
			}
		})
	}
}
