package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// Usage is what a repository takes on the volume. Counting all its files is left to [Volume.GC]; a sync
// adds what it has written itself, or what the file system has lost meanwhile if that is more.
type Usage struct {
	Bytes    int64     `json:"bytes"`              // on disk, a file that trees share counted once
	Files    int64     `json:"files"`              // likewise
	Trees    int       `json:"trees"`              // published and replaced ones
	Adopted  []Adopted `json:"adopted,omitempty"`  // clones that were adopted; not in Bytes and Files
	Measured time.Time `json:"measured,omitzero"`  // when; zero: never
	Added    int64     `json:"added,omitempty"`    // bytes by which it may have grown since
	Contents string    `json:"contents,omitempty"` // what there was of trees and stores, to tell whether that changed
}

// Adopted is a clone that stood in a published name's place. It is kept until somebody deletes it.
type Adopted struct {
	Path  string `json:"path"` // relative to the root
	Bytes int64  `json:"bytes"`
}

// Space is what a file system has.
type Space struct {
	Size, Free         int64 // bytes; Free is what an ordinary user may still take
	Inodes, FreeInodes int64 // zero where the file system does not count them
}

// Space asks the volume's file system.
func (v *Volume) Space() (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(v.root, &st); err != nil {
		return Space{}, disk.Error("ask for the volume's free space", err)
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

// Usage returns what repo took when it was last measured, and by how much it may have grown since.
// It reads one small file, and may be zero.
func (v *Volume) Usage(repo events.RepoPath) Usage { return v.folder(repo).readUsage() }

func (f folder) usage() string { return filepath.Join(f.dir, "usage") }

// readUsage returns the zero Usage when nothing is known: the file is a note that may be lost.
func (f folder) readUsage() Usage {
	var u Usage
	content, err := os.ReadFile(f.usage())
	if err != nil || json.Unmarshal(content, &u) != nil {
		return Usage{}
	}
	return u
}

// writeUsage replaces the note, without waiting for the disk.
func (f folder) writeUsage(u Usage) error {
	content, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return disk.Error("note what the repository takes", os.WriteFile(f.usage(), append(content, '\n'), 0o644))
}

// measure counts what is in the repository's folder: one system call for each file.
func (v *Volume) measure(ctx context.Context, f folder) (Usage, error) {
	u := Usage{Measured: time.Now()}
	contents, trees, err := f.contents()
	if err != nil {
		return Usage{}, err
	}
	u.Contents, u.Trees = contents, trees
	c := tally{ctx: ctx, skip: f.adopted(), shared: map[disk.Inode]uint64{}, own: f.hasTombstone()}
	if err := c.count(f.dir); err != nil {
		return Usage{}, disk.Error("measure the repository", err)
	}
	u.Bytes, u.Files = c.bytes, c.files
	clones, err := disk.ReadDir(f.adopted())
	if err != nil {
		return Usage{}, disk.Error("measure adopted clones", err)
	}
	for _, clone := range clones {
		c := tally{ctx: ctx, shared: map[disk.Inode]uint64{}}
		path := filepath.Join(f.adopted(), clone.Name())
		if err := c.count(path); err != nil {
			return Usage{}, disk.Error("measure an adopted clone", err)
		}
		if clone.IsDir() {
			u.Adopted = append(u.Adopted, Adopted{Path: v.relative(path), Bytes: c.bytes})
		}
	}
	return u, nil
}

// contents says in few words which trees and stores there are, and counts the trees.
func (f folder) contents() (string, int, error) {
	generations, err := f.generations()
	if err != nil {
		return "", 0, err
	}
	entries, err := disk.ReadDir(f.trees())
	if err != nil {
		return "", 0, disk.Error("list the trees", err)
	}
	trees := slices.DeleteFunc(slices.Clone(entries), func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), buildPrefix) })
	oldest, youngest := "", ""
	if len(trees) > 0 {
		oldest, youngest = trees[0].Name(), trees[len(trees)-1].Name()
	}
	return fmt.Sprintf("stores %v, %d trees of %d, %s to %s", generations, len(trees), len(entries), oldest, youngest), len(trees), nil
}

// tally adds up a folder. A file of several names counts where it is met first; or, if only the folder's
// own files are to count, where the last of its names is met.
type tally struct {
	ctx    context.Context       // of one count
	skip   string                // folder to leave out
	own    bool                  // leave out files that have names elsewhere
	shared map[disk.Inode]uint64 // how many names of a file have been met
	bytes  int64
	files  int64
}

func (c *tally) count(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case errors.Is(err, fs.ErrNotExist):
			return nil // it went while we counted
		case errors.Is(err, fs.ErrPermission):
			return nil // part of a clone that was adopted, and others' own
		case err != nil:
			return err
		case path == c.skip:
			return filepath.SkipDir
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		c.add(info)
		return nil
	})
}

func (c *tally) add(info fs.FileInfo) {
	st, err := disk.Stat(info)
	if err != nil {
		return
	}
	if !info.IsDir() {
		if key := (disk.Inode{Dev: st.Dev, Ino: st.Ino}); st.Nlink > 1 {
			c.shared[key]++
			if met := c.shared[key]; c.own && met < uint64(st.Nlink) || !c.own && met > 1 {
				return
			}
		}
		c.files++
	}
	c.bytes += st.Blocks * 512 // whatever the file system's own blocks are
}

// Total is what all repositories of a volume came to when they were last looked at.
type Total struct {
	Repos     int       `json:"repos"`
	Trees     int       `json:"trees"`
	Bytes     int64     `json:"bytes"`
	Files     int64     `json:"files"`
	Adopted   int64     `json:"adopted"` // bytes in adopted clones, not in Bytes
	Patrolled time.Time `json:"patrolled,omitzero"`
}

// Add adds one repository.
func (t *Total) Add(u Usage) {
	t.Repos++
	t.Trees += u.Trees
	t.Bytes += u.Bytes + u.Added
	t.Files += u.Files
	for _, clone := range u.Adopted {
		t.Adopted += clone.Bytes
	}
}

func (v *Volume) totalPath() string { return filepath.Join(v.root, adminDir, "usage") }

// Total returns what [Volume.SetTotal] was last told by any process; zero when nothing.
func (v *Volume) Total() Total {
	var t Total
	content, err := os.ReadFile(v.totalPath())
	if err != nil || json.Unmarshal(content, &t) != nil {
		return Total{}
	}
	return t
}

// SetTotal notes what all repositories take, for quotas and figures.
func (v *Volume) SetTotal(t Total) error {
	content, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return disk.Error("note what all repositories take", disk.Replace(v.totalPath(), append(content, '\n')))
}

// meter watches over the space that one sync takes.
type meter struct {
	running bool
	free    int64 // on the volume when it began
	own     int64 // bytes that the sync is known to have taken since it was last measured
	usage   Usage // of the repository, without those
}

// remeasureAfter is how old a measurement must be, or else followed by growth, to be made again before
// a repository is refused for its size.
const remeasureAfter = time.Minute

// admit refuses to begin what there is no room for, and begins to count.
func (s *syncer) checkSpace(ctx context.Context) error {
	if s.upToDate() {
		return nil // no more than files are to be listed
	}
	space, err := s.v.Space()
	if err != nil {
		return err
	}
	if least := s.v.cfg.MinFreeBytes; space.Free < least {
		return overQuota(events.Retryable, "the volume has %s free, and min-free-bytes keeps %s: free space, "+
			"run lockstep repos gc --all, or lower the setting", BytesText(space.Free), BytesText(least))
	}
	if most := s.v.cfg.MaxVolumeBytes; most > 0 {
		if total := s.v.Total(); total.Bytes > most {
			return overQuota(events.Retryable, "all repositories together take %s, and max-volume-bytes is %s: run "+
				"lockstep repos gc --all, remove repositories, or raise the setting", BytesText(total.Bytes), BytesText(most))
		}
	}
	s.meter = meter{running: true, free: space.Free, usage: s.f.readUsage()}
	if s.meter.usage.Measured.IsZero() {
		if s.meter.usage, err = s.v.measure(ctx, s.f); err != nil {
			return err
		}
	}
	return s.checkSize(ctx)
}

// weigh refuses what was fetched to dir, a folder of the repository's, when that makes it too large.
func (s *syncer) checkFetched(ctx context.Context, dir string) error {
	if !s.meter.running {
		return nil
	}
	fetched := tally{ctx: ctx, shared: map[disk.Inode]uint64{}}
	if err := fetched.count(dir); err != nil {
		return disk.Error("measure what was fetched", err)
	}
	s.meter.own += fetched.bytes
	return s.checkSize(ctx)
}

func (s *syncer) checkSize(ctx context.Context) error {
	u, most := &s.meter.usage, s.v.cfg.MaxRepoBytes
	if u.Bytes+u.Added+s.meter.own <= most {
		return nil
	}
	if u.Added+s.meter.own > 0 || time.Since(u.Measured) > remeasureAfter {
		measured, err := s.v.measure(ctx, s.f)
		if err != nil {
			return err
		}
		*u, s.meter.own = measured, 0
	}
	if u.Bytes <= most {
		return nil
	}
	return overQuota(events.Permanent, "it takes %s on the volume, and max-repo-bytes is %s: run lockstep repos gc, "+
		"shorten tree-grace, or raise the setting if the repository is meant to be that large", BytesText(u.Bytes), BytesText(most))
}

// note writes down by how much the repository may have grown: by what it is known to have taken, or by
// what the volume has lost meanwhile if that is more. It is told of failures, too: what they have fetched
// may stay.
func (s *syncer) noteGrowth(res SyncResult) {
	if !s.meter.running {
		return
	}
	if res.Published {
		s.meter.own += s.v.written(res)
	}
	if space, err := s.v.Space(); err == nil {
		s.meter.own = max(s.meter.own, s.meter.free-space.Free)
	}
	s.meter.usage.Added += s.meter.own
	_ = s.f.writeUsage(s.meter.usage) // without it, it is measured again
}

// written adds up the changed files of a tree, and its index.
func (v *Volume) written(res SyncResult) int64 {
	sum := tally{shared: map[disk.Inode]uint64{}}
	add := func(path string) {
		if info, err := os.Lstat(path); err == nil {
			sum.add(info)
		}
	}
	tree := filepath.Join(v.root, filepath.FromSlash(res.Tree))
	add(checkout.GitDirOf(tree).Index())
	for _, file := range res.Files {
		if file.Status != events.FileDeleted {
			add(filepath.Join(tree, filepath.FromSlash(file.Path)))
		}
	}
	return sum.bytes
}

func overQuota(d events.Disposition, format string, args ...any) error {
	return events.Errorf(d, events.ClassQuota, format, args...)
}

// BytesText is a number of bytes as people write it.
func BytesText(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n), -1
	for ; value >= 1<<10 && unit < len(units)-1; unit++ {
		value /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}
