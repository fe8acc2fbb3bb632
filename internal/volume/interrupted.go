package volume

import (
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
)

// Recover verifies what an unclean stop may have damaged with verify, which is called for one repository after another and
// marks damage. It returns how many were verified. If verify fails for any, the next call repeats all.
func (v *Volume) Recover(ctx context.Context, verify func(ctx context.Context, repo events.RepoPath) error) (verified int, err error) {
	stop, err := v.interrupted()
	if stop == nil {
		return 0, err
	}
	defer stop.close()
	var failed error
	for repo, err := range stop.repos() {
		if ctx.Err() != nil {
			return verified, context.Cause(ctx)
		}
		if err == nil {
			err = verify(ctx, repo)
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		verified++
	}
	if failed != nil {
		return verified, failed
	}
	return verified, stop.done()
}

// interrupted selects the repositories that an unclean stop of this machine may have damaged: see [DurabilityProcess].
type interrupted struct {
	v       *Volume
	records []string  // paths of the records of other boots
	since   time.Time // everything older is on disk
	lock    *os.File
}

const (
	// clockMargin allows for the coarse clock of file systems.
	clockMargin = 2 * time.Second

	// remoteSilence is how old the record of another boot must be on a network file system, where it may belong to
	// another machine.
	remoteSilence = 5 * time.Minute
)

// interrupted returns the repositories to verify after an unclean stop, or nil if there was none or another process verifies
// them. The caller must close the result.
func (v *Volume) interrupted() (*interrupted, error) {
	records, since, err := v.foreignRecords()
	if err != nil || len(records) == 0 {
		return nil, disk.Error("look for an unclean stop", err)
	}
	lock, err := os.OpenFile(filepath.Join(v.unsyncedDir(), "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, disk.Error("look for an unclean stop", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, disk.Error("look for an unclean stop", err)
	}
	return &interrupted{v, records, since.Add(-clockMargin), lock}, nil
}

// foreignRecords lists the records of other boots and the oldest of their times.
func (v *Volume) foreignRecords() (records []string, since time.Time, err error) {
	entries, err := disk.ReadDir(v.unsyncedDir())
	if err != nil {
		return nil, since, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if name == "lock" || name == v.boot || strings.Contains(name, disk.TempInfix) {
			continue
		}
		info, err := entry.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, since, err
		}
		if !disk.IsLocal(v.root) && time.Since(info.ModTime()) < remoteSilence {
			continue
		}
		records = append(records, v.unsyncedRecord(name))
		if since.IsZero() || info.ModTime().Before(since) {
			since = info.ModTime()
		}
	}
	return records, since, nil
}

// repos lists the repositories that have changed since, with errors as of [Volume.Repos].
func (i *interrupted) repos() iter.Seq2[events.RepoPath, error] {
	return func(yield func(events.RepoPath, error) bool) {
		for repo, err := range i.v.Repos() {
			if err == nil && !i.v.changedSince(repo, i.since) {
				continue
			}
			if !yield(repo, err) {
				return
			}
		}
	}
}

// done records that the repositories are verified and damage is marked.
func (i *interrupted) done() error {
	for _, record := range i.records {
		if err := os.Remove(record); err != nil && !errors.Is(err, os.ErrNotExist) {
			return disk.Error("drop the record of an earlier boot", err)
		}
	}
	return disk.Error("drop the record of an earlier boot", disk.SyncDir(i.v.unsyncedDir()))
}

// close lets other processes verify. It unlocks explicitly, since a child process that is being started may share the open file.
func (i *interrupted) close() {
	_ = unix.Flock(int(i.lock.Fd()), unix.LOCK_UN)
	_ = i.lock.Close()
}

// changedSince reports whether a repository's trees, stores or published names may have changed since a moment. A name
// whose tree is missing counts as changed, as does whatever cannot be read.
func (v *Volume) changedSince(repo events.RepoPath, since time.Time) bool {
	f := v.folder(repo)
	b, _, err := f.readBinding()
	if err != nil {
		return true
	}
	paths := []string{f.trees(), f.stores(), f.views().trees()}
	links, err := v.allLinks(f, b)
	if err != nil {
		return true
	}
	views, err := v.allViewLinks(f, b)
	if err != nil {
		return true
	}
	for _, l := range views {
		paths = append(paths, l.file(f))
	}
	for path, tree := range links {
		paths = append(paths, path)
		if _, err := os.Lstat(f.tree(tree)); err != nil {
			return true
		}
	}
	for _, dir := range paths[:2] {
		entries, err := disk.ReadDir(dir)
		if err != nil {
			return true
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			paths = append(paths, path, filepath.Join(path, "packed-refs"))
		}
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) || err == nil && !info.ModTime().Before(since) {
			return true
		}
	}
	return false
}
