package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// Space is the size and free space of a file system.
type Space struct {
	Size, Free         int64 // bytes; Free excludes blocks reserved for root
	Inodes, FreeInodes int64 // zero if the file system does not count them
}

// Space returns the size and free space of the volume's file system.
func (v *Volume) Space() (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(v.root, &st); err != nil {
		return Space{}, disk.Error("read the volume's free space", err)
	}
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	return Space{
		Size: int64(st.Blocks) * unit, Free: int64(st.Bavail) * unit,
		Inodes: int64(st.Files), FreeInodes: int64(st.Ffree),
	}, nil
}

// meter tracks the space that one sync uses.
type meter struct {
	running bool
	own     int64 // bytes that the sync fetched since the last measurement
	built   int64 // bytes that the new tree does not share
	usage   Usage // of the repository, without own
}

// remeasureAfter is the maximum age of a measurement; an older one is repeated before a repository is refused.
const remeasureAfter = time.Minute

// checkSpace fails if the volume or the repository exceeds a limit, and otherwise starts the meter.
func (s *syncer) checkSpace(ctx context.Context, t *target) error {
	if s.isPublished(t, t.Commit, nil) {
		return nil // only changed files will be listed
	}
	err := s.v.checkFree(0)
	if err != nil {
		return err
	}
	s.meter = meter{running: true, usage: readCache[Usage](s.f.usage())}
	if s.meter.usage.Measured.IsZero() {
		if s.meter.usage, err = s.measure(ctx); err != nil {
			return err
		}
	}
	return s.checkSize(ctx)
}

// measure counts the repository's files, in a slot unless there are none yet.
func (s *syncer) measure(ctx context.Context) (Usage, error) {
	generations, err := s.f.generations()
	if err != nil {
		return Usage{}, err
	}
	if len(generations) > 0 {
		if err := s.takeSlot(ctx); err != nil {
			return Usage{}, err
		}
	}
	return s.v.measure(ctx, s.f)
}

// checkFetched fails if the objects fetched to dir make the repository too large.
func (s *syncer) checkFetched(ctx context.Context, dir string) error {
	if !s.meter.running {
		return nil
	}
	fetched, err := spaceBelow(ctx, dir)
	if err != nil {
		return disk.Error("measure what was fetched", err)
	}
	s.meter.own += fetched
	return s.checkSize(ctx)
}

// spaceBelow returns the bytes on disk of a folder and everything in it.
func spaceBelow(ctx context.Context, dir string) (int64, error) {
	c := tally{ctx: ctx, shared: map[disk.Inode]uint64{}}
	err := c.count(dir)
	return c.bytes, err
}

func (s *syncer) checkSize(ctx context.Context) error { return s.checkGrowth(ctx, 0) }

// checkFree fails if this many bytes more do not fit on the volume.
func (v *Volume) checkFree(more int64) error {
	fetch := ""
	if more > 0 {
		fetch = fmt.Sprintf(" before %s are fetched", BytesText(more))
	}
	space, err := v.Space()
	if err != nil {
		return err
	}
	if least := v.cfg.MinFreeBytes; space.Free-more < least {
		return events.Errorf(events.Retryable, events.ClassQuota, "the volume has %s free%s, and min-free-bytes is "+
			"%s: free space, run lockstep repos gc --all, or lower it in the setting limits", BytesText(space.Free),
			fetch, BytesText(least))
	}
	if most := v.cfg.MaxVolumeBytes; most > 0 {
		if total := v.Total(); total.Bytes > most-more {
			return events.Errorf(events.Retryable, events.ClassQuota, "all repositories together use %s%s, and "+
				"max-volume-bytes is %s: run lockstep repos gc --all, remove repositories, or raise it in the "+
				"setting limits", BytesText(total.Bytes), fetch, BytesText(most))
		}
	}
	return nil
}

// checkRoom fails if this many bytes more do not fit on the volume or into the repository's limit.
func (s *syncer) checkRoom(ctx context.Context, more int64) error {
	if err := s.v.checkFree(more); err != nil {
		return err
	}
	return s.checkGrowth(ctx, more)
}

// checkGrowth fails if the repository with this many bytes more is above its limit.
func (s *syncer) checkGrowth(ctx context.Context, more int64) error {
	u, most := &s.meter.usage, s.v.cfg.MaxRepoBytes-more
	if u.Bytes+u.Added+s.meter.own <= most {
		return nil
	}
	if u.Added+s.meter.own > 0 || time.Since(u.Measured) > remeasureAfter {
		measured, err := s.measure(ctx)
		if err != nil {
			return err
		}
		*u, s.meter.own = measured, 0
	}
	if u.Bytes <= most {
		return nil
	}
	return events.Errorf(events.Permanent, events.ClassQuota, "the repository uses %s, more than max-repo-bytes %s: "+
		"run lockstep repos gc, shorten tree-grace, or raise it in the setting limits if the repository is meant to "+
		"be that large", BytesText(u.Bytes+more), BytesText(most+more))
}

// countBuilt counts the files of a new tree at dst that it does not share.
func (m *meter) countBuilt(dst string, files *checkout.Files) {
	if !m.running {
		return
	}
	built := tally{shared: map[disk.Inode]uint64{}}
	own, _ := checkout.GitDirOf(dst).Files()
	for _, path := range append(own, pathsIn(dst, files.Written)...) {
		if info, err := os.Lstat(path); err == nil {
			built.add(info)
		}
	}
	m.built = built.bytes
	empty := filepath.Join(checkout.GitDirOf(dst).Dir, "refs", "tags") // takes as much as most folders
	if info, err := os.Lstat(empty); err == nil {
		folder := tally{}
		folder.add(info)
		m.built += files.Folders * folder.bytes
	}
}

// noteGrowth records the repository's estimated growth: the bytes written by the sync. It also runs after failures,
// because fetched objects may stay.
func (s *syncer) noteGrowth(res SyncResult) {
	if !s.meter.running {
		return
	}
	if res.Published {
		s.meter.own += s.meter.built
	}
	s.meter.usage.Added += s.meter.own
	_ = s.f.writeUsage(s.meter.usage) // non-critical: the next GC measures again
}
