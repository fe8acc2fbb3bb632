package disk_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/disk"
)

func TestReadStable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link, read := filepath.Join(dir, "..data"), 0
	publish := func(version string) {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, version), 0o700), os.Symlink(version, link+"_tmp"), os.Rename(link+"_tmp", link)); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1")
	err := disk.ReadStable(dir, func() error {
		if read++; read == 1 { // the mounted secret is replaced while it is read
			publish("..2")
			_ = os.Remove(filepath.Join(dir, "..1"))
			return fs.ErrNotExist
		}
		return nil
	})
	if err != nil || read != 2 {
		t.Errorf("%d reads, %v", read, err)
	}
	failed := errors.New("failed")
	if err := disk.ReadStable(dir, func() error { return failed }); err != failed {
		t.Errorf("the error of a read that met no replacement: %v", err)
	}
	if err := disk.ReadStable(filepath.Join(dir, "none"), func() error { read++; return nil }); err != nil || read != 3 {
		t.Errorf("a folder that does not exist: %d reads, %v", read, err)
	}
	if err := os.Remove(filepath.Join(dir, "..2")); err != nil {
		t.Fatal(err)
	}
	if err := disk.ReadStable(dir, func() error { return nil }); err == nil {
		t.Error("a link that leads nowhere was read")
	}
}
