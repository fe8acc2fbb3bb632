package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/lfs"
)

// Usage is a repository's disk usage. [Volume.GC] measures it by counting all files; a sync adds what it wrote.
type Usage struct {
	Bytes    int64     `json:"bytes"`              // on disk; a file that trees share counts once
	Files    int64     `json:"files"`              // counted like Bytes
	Trees    int       `json:"trees"`              // published and retired
	Adopted  []Adopted `json:"adopted,omitempty"`  // adopted clones; not in Bytes and Files
	Measured time.Time `json:"measured,omitzero"`  // zero: never
	Added    int64     `json:"added,omitempty"`    // estimated growth since, in bytes
	Contents string    `json:"contents,omitempty"` // summary of trees and stores, to detect changes
}

// Adopted is a clone that a published name replaced. It is kept until an operator deletes it.
type Adopted struct {
	Path  string `json:"path"` // relative to the root
	Bytes int64  `json:"bytes"`
}

// Usage returns repo's last measured usage and its estimated growth since. It reads one small file and may be zero.
func (v *Volume) Usage(repo events.RepoPath) Usage {
	return readCache[Usage](v.folder(repo).usage())
}

func (f folder) usage() string { return filepath.Join(f.dir, "usage") }

// readCache reads a JSON file. It returns the zero value if the file is missing or damaged.
func readCache[T any](path string) (value T) {
	content, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(content, &value) != nil {
		value = *new(T)
	}
	return value
}

// writeUsage replaces the file, which other processes may be reading, without syncing it to disk.
func (f folder) writeUsage(u Usage) error {
	content, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return disk.Error("write the repository's usage", disk.ReplaceUnsynced(f.usage(), append(content, '\n')))
}

// measure counts the repository's files, with one system call per file.
func (v *Volume) measure(ctx context.Context, f folder) (Usage, error) {
	u := Usage{Measured: time.Now()}
	contents, trees, err := f.contents()
	if err != nil {
		return Usage{}, err
	}
	u.Contents, u.Trees = contents, trees
	b, _, _ := f.readBinding()
	c := tally{ctx: ctx, skip: f.adopted(), shared: map[disk.Inode]uint64{}, own: b.MovedAway != nil}
	if err := c.count(f.dir); err != nil {
		return Usage{}, disk.Error("measure the repository", err)
	}
	u.Bytes, u.Files = c.bytes, c.files
	if u.Adopted, err = v.adoptedNow(f, nil); err != nil {
		return Usage{}, err
	}
	for i, clone := range u.Adopted {
		c := tally{ctx: ctx, shared: map[disk.Inode]uint64{}}
		if err := c.count(filepath.Join(v.root, filepath.FromSlash(clone.Path))); err != nil {
			return Usage{}, disk.Error("measure an adopted clone", err)
		}
		u.Adopted[i].Bytes = c.bytes
	}
	return u, nil
}

// contents summarizes the trees and stores, and counts the trees.
func (f folder) contents() (string, int, error) {
	generations, err := f.generations()
	if err != nil {
		return "", 0, err
	}
	trees, err := disk.ReadDir(f.trees())
	if err != nil {
		return "", 0, disk.Error("list the trees", err)
	}
	prepared, err := f.preparedTrees()
	if err != nil {
		return "", 0, err
	}
	oldest, youngest := "", ""
	if len(trees) > 0 {
		oldest, youngest = trees[0].Name(), trees[len(trees)-1].Name()
	}
	text := fmt.Sprintf("stores %v, %d trees, %s to %s, %d prepared", generations, len(trees), oldest, youngest,
		len(prepared))
	if begun, err := (&lfs.Store{Dir: f.lfs()}).Incomplete(); err != nil || begun {
		text += ", LFS downloads"
	}
	parts, err := f.listParts()
	if err != nil {
		return "", 0, err
	}
	if len(parts) > 0 {
		text += fmt.Sprintf(", %d submodules", len(parts))
	}
	apps, err := disk.ReadDir(f.origins())
	if err != nil {
		return "", 0, disk.Error("list the folders of subtrees", err)
	}
	for _, app := range apps {
		if info, err := app.Info(); err == nil { // what its names link to may have changed
			text += fmt.Sprintf(", subtrees of %s at %d", app.Name(), info.ModTime().UnixNano())
		}
	}
	return text, len(trees), nil
}

// tally adds up a folder. A file with several hard links counts once; if own is set, it counts only if all
// its links are in the folder.
type tally struct {
	ctx    context.Context       // of one count
	skip   string                // folder to skip
	own    bool                  // skip files that have links elsewhere
	shared map[disk.Inode]uint64 // number of links found so far
	bytes  int64
	files  int64
}

func (c *tally) count(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case errors.Is(err, fs.ErrNotExist):
			return nil // deleted meanwhile
		case errors.Is(err, fs.ErrPermission):
			return nil // part of an adopted clone with another owner
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
			if n := c.shared[key]; c.own && n < uint64(st.Nlink) || !c.own && n > 1 {
				return
			}
		}
		c.files++
	}
	c.bytes += st.Blocks * 512 // Blocks counts units of 512 bytes
}

// Total is the usage of all repositories of a volume at the last garbage collection.
type Total struct {
	Repos     int       `json:"repos"`
	Trees     int       `json:"trees"`
	Bytes     int64     `json:"bytes"`
	Files     int64     `json:"files"`
	Adopted   int64     `json:"adopted"` // bytes in adopted clones, not in Bytes
	Collected time.Time `json:"collected,omitzero"`
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

// Total returns the total that any process last passed to [Volume.SetTotal], or zero.
func (v *Volume) Total() Total { return readCache[Total](v.totalPath()) }

// SetTotal stores the usage of all repositories, for quotas and metrics.
func (v *Volume) SetTotal(t Total) error {
	content, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return disk.Error("write the volume's usage", disk.Replace(v.totalPath(), append(content, '\n')))
}

// BytesText formats a number of bytes, such as "1.5MiB".
func BytesText(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n), -1
	for ; value >= 1<<10 && unit < len(units)-1; unit++ {
		value /= 1 << 10
	}
	return fmt.Sprintf("%s%ciB", strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0"), units[unit])
}
