package disk_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lockstep/internal/disk"
)

func TestGlobTakesTheFolderLiterally(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), `data[1]*?\`)
	want := []string{filepath.Join(dir, "a", "x"), filepath.Join(dir, "b", "x")}
	for _, path := range append(want, filepath.Join(dir, "b", "y")) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := disk.Glob(dir, "*/x"); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if got, err := disk.Glob(filepath.Join(dir, "none"), "*"); err != nil || len(got) != 0 {
		t.Errorf("a missing folder: %q, %v", got, err)
	}
}
