package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// Durability says what of a published tree survives.
type Durability string

// The durabilities.
const (
	// DurabilityPower has everything that a name leads to on disk before the name is flipped, and the name before Sync
	// returns.
	DurabilityPower Durability = "power"

	// DurabilityProcess syncs nothing during a sync, as Git does: a killed process loses nothing, but a power cut may lose
	// or damage trees published since the last [Volume.SyncPublished]. [Volume.Recover] finds it.
	DurabilityProcess Durability = "process"
)

// syncs reports whether a sync waits for the disk.
func (v *Volume) syncs() bool { return v.cfg.Durability != DurabilityProcess }

// flushTree makes the tree at path durable, with its name and the fence that this contains. Nothing names it yet.
func (s *syncer) flushTree(ctx context.Context, path string, files *checkout.Files) error {
	if !s.v.syncs() {
		return s.v.noteUnsynced()
	}
	written := append(pathsIn(path, files.Written), s.f.fence())
	above := []string{s.f.trees(), s.f.dir}
	if files.Changed != nil {
		return disk.FlushChanged(append(written, pathsIn(path, files.GitWritten)...), append(above, pathsIn(path, files.Changed)...))
	}
	own, err := checkout.GitDirOf(path).Files()
	if err == nil {
		err = disk.Flush(ctx, path, append(written, own...))
	}
	return errors.Join(err, disk.FlushChanged(nil, above))
}

// flushStore makes a new store and the folders above it durable.
func (v *Volume) flushStore(in store) error {
	if !v.syncs() {
		return nil
	}
	objects := filepath.Join(in.dir, "objects")
	folders := []string{objects, filepath.Join(objects, "pack"), filepath.Join(objects, "info"), filepath.Join(in.dir, "refs")}
	for dir := in.dir; len(dir) >= len(v.root); dir = filepath.Dir(dir) {
		folders = append(folders, dir)
	}
	files := []string{filepath.Join(in.dir, "config"), filepath.Join(in.dir, "HEAD")}
	return disk.Error("create the store", disk.FlushChanged(files, folders))
}

// unsyncedRecord returns the path of the record of a boot: everything that it wrote before the record's mtime is on disk.
func (v *Volume) unsyncedRecord(boot string) string { return filepath.Join(v.unsyncedDir(), boot) }

func (v *Volume) unsyncedDir() string { return filepath.Join(v.root, adminDir, "unsynced") }

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// readBootID returns the ID of this boot. Without /proc it fails, and returns a name that no record has.
func readBootID() (string, error) {
	content, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "unknown", disk.Error("read the ID of this boot, which durability process needs", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// noteUnsynced is called before something is published that is not synced. The first call after a boot writes its record.
func (v *Volume) noteUnsynced() error {
	if v.syncs() {
		return nil
	}
	v.published.Store(true)
	record := v.unsyncedRecord(v.boot)
	if _, err := os.Lstat(record); err == nil {
		return nil
	}
	err := os.MkdirAll(v.unsyncedDir(), 0o755)
	if err == nil {
		err = disk.Replace(record, nil)
	}
	if err == nil {
		err = disk.FlushChanged(nil, []string{filepath.Dir(v.unsyncedDir())})
	}
	return disk.Error("record that publications are not synced", err)
}

// SyncPublished syncs the volume's whole file system if something may have been published with [DurabilityProcess] since
// the last call. It does nothing if nothing ever was.
func (v *Volume) SyncPublished() error {
	record := v.unsyncedRecord(v.boot)
	if _, err := os.Lstat(record); err != nil || !v.published.Swap(false) {
		return nil
	}
	err := v.syncPublished(record)
	if err != nil {
		v.published.Store(true)
	}
	return disk.Error("sync what was published", err)
}

func (v *Volume) syncPublished(record string) error {
	next, err := os.CreateTemp(v.unsyncedDir(), v.boot+disk.TempInfix+"*") // its mtime precedes the sync
	if err != nil {
		return err
	}
	defer os.Remove(next.Name()) // fails after the rename
	if err := errors.Join(next.Close(), disk.SyncVolume(v.root)); err != nil {
		return err
	}
	if v.syncs() { // the setting was changed
		err = os.Remove(record)
	} else {
		err = os.Rename(next.Name(), record)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return disk.SyncDir(v.unsyncedDir())
}
