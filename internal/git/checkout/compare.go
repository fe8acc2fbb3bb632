package checkout

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// Pointed reports whether a blob is a pointer to content with this SHA-256 and size in bytes, as with Git LFS.
type Pointed func(blob object.ID, sum [sha256.Size]byte, size int64) bool

// Pace is called before bytes are read, and delays the reader or stops it with an error.
type Pace func(ctx context.Context, bytes int64) error

// Fingerprint summarizes the stats of all files and the number of names in all folders of a tree. Changing a file also changes
// its ctime, which cannot be restored. The zero Fingerprint matches no tree.
type Fingerprint [sha1.Size]byte

// Difference is a name at which a tree is not as it was built.
type Difference struct {
	Path    string // relative to the tree
	Missing bool   // rather than another type, other content, or an additional name
}

// manifestPath is the Path of a Difference for a manifest that cannot be read.
const manifestPath = ".git/lockstep-index"

const (
	entryCost   = 4096            // bytes that looking at one file counts as
	compareStep = 256 << 10       // bytes read at once
	settleTime  = 2 * time.Second // a file may change again within the resolution of its ctime
)

// Compare compares the files of a published tree with its manifest: their type and content, and that there are no other names. It
// reads no content if the tree still has the fingerprint known, with which it was compared before. It returns the tree's
// fingerprint, which is zero if the tree has to be read again, and the differences. Trees of older versions, which have no manifest,
// have none. A tree that is deleted meanwhile has missing files. pointed is asked about the files of trees with large files.
func Compare(ctx context.Context, tree string, known Fingerprint, pace Pace, pointed Pointed) (Fingerprint, []Difference, error) {
	made, found, err := openManifest(tree)
	if err != nil || found != nil || made == nil {
		return Fingerprint{}, found, err
	}
	c := &comparison{ctx: ctx, tree: tree, pace: pace, pointed: pointed, hasLarge: GitDirOf(tree).Large() != "", made: made}
	now, found, err := c.look()
	if err != nil || found == nil && now == known && known != (Fingerprint{}) {
		return known, found, err
	}
	altered, err := c.read(nil)
	if err != nil {
		return Fingerprint{}, nil, err
	}
	if found = append(found, altered...); len(found) > 0 || time.Since(c.newest) < settleTime {
		now = Fingerprint{}
	}
	return now, found, nil
}

// CompareSome returns which of the paths differ in a tree, as [Compare] finds them.
func CompareSome(ctx context.Context, tree string, paths []string, pointed Pointed) (differ []string, err error) {
	made, found, err := openManifest(tree)
	if err != nil || found != nil {
		return pathsOf(found), err
	}
	if made == nil {
		return nil, nil
	}
	c := &comparison{ctx: ctx, tree: tree, made: made, pointed: pointed, hasLarge: GitDirOf(tree).Large() != "", pace: func(context.Context, int64) error { return nil }}
	if found, err = c.read(paths); err != nil {
		return nil, err
	}
	additional, err := c.additional(paths)
	return append(pathsOf(found), additional...), err
}

func pathsOf(found []Difference) []string {
	var paths []string
	for _, d := range found {
		paths = append(paths, d.Path)
	}
	return paths
}

// openManifest reads a tree's manifest; it is nil if the tree is of an older version without.
func openManifest(tree string) (made manifest, damaged []Difference, err error) {
	g := GitDirOf(tree)
	_, commit, _ := g.RefAndCommit() // without, its format is SHA-1 or the manifest counts as damaged
	made, err = g.readFiles(object.ParseID(commit).Format())
	switch {
	case err == nil:
		return made, nil, nil
	case errors.Is(err, os.ErrNotExist) && !g.ResolvesLinks():
		return nil, nil, nil
	case errors.Is(err, ErrBadManifest), isAlteration(err):
		return nil, []Difference{{manifestPath, errors.Is(err, os.ErrNotExist)}}, nil
	}
	return nil, nil, disk.Error("compare a tree", err)
}

// comparison is one comparison of a tree with its manifest.
type comparison struct {
	ctx      context.Context // of the comparison
	tree     string
	pace     Pace
	pointed  Pointed
	hasLarge bool // pointed is to be asked
	made     manifest
	newest   time.Time // the newest ctime
}

// look returns the tree's fingerprint and its additional names.
func (c *comparison) look() (now Fingerprint, found []Difference, err error) {
	at, err := disk.NewWalker(c.tree)
	if err != nil {
		return now, nil, c.failed(err)
	}
	defer at.Close()
	sum := sha1.New()
	for _, t := range c.made {
		if err := c.pace(c.ctx, entryCost); err != nil {
			return now, nil, err
		}
		if st, err := statAt(at, t.path); err == nil {
			if changed := time.Unix(st.Ctim.Unix()); changed.After(c.newest) {
				c.newest = changed
			}
			addStat(sum, st)
		}
		sum.Write(t.hash.Bytes())
	}
	for _, f := range foldersOf(c.made) {
		folder, err := at.Enter(f.folder, disk.Dir.Open)
		if isAlteration(err) {
			continue // its files are missing
		}
		names := 0
		if err == nil {
			names, err = folder.Count()
		}
		if err != nil {
			return now, nil, c.failed(err)
		}
		if f.folder == "" {
			names-- // .git
		}
		if names > f.names {
			if found, err = c.additionalIn(found, f.folder); err != nil {
				return now, nil, err
			}
		}
		_ = binary.Write(sum, binary.LittleEndian, int64(names))
	}
	return Fingerprint(sum.Sum(nil)), found, nil
}

func addStat(to hash.Hash, st unix.Stat_t) {
	_ = binary.Write(to, binary.LittleEndian, []int64{
		int64(st.Ino), int64(st.Mode), st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, //nolint:unconvert // 32 bits elsewhere
	})
}

func statAt(at *disk.Walker, file string) (unix.Stat_t, error) {
	folder, err := at.Enter(disk.Parent(file), disk.Dir.Open)
	if err != nil {
		return unix.Stat_t{}, err
	}
	return folder.Stat(path.Base(file))
}

// additionalIn appends the names in a folder that are not in the manifest.
func (c *comparison) additionalIn(found []Difference, folder string) ([]Difference, error) {
	entries, err := os.ReadDir(filepath.Join(c.tree, filepath.FromSlash(folder)))
	if err != nil && !isAlteration(err) {
		return nil, c.failed(err)
	}
	for _, entry := range entries {
		if path := path.Join(folder, entry.Name()); path != ".git" && !c.has(path) {
			found = append(found, Difference{Path: path})
		}
	}
	return found, nil
}

// has reports whether the manifest has a file or folder.
func (c *comparison) has(path string) bool {
	i, found := slices.BinarySearchFunc(c.made, path, func(t tracked, path string) int { return strings.Compare(t.path, path) })
	if found {
		return true
	}
	return c.made[i:].hasBelow(path)
}

// additional returns those of the paths that exist, but not in the manifest.
func (c *comparison) additional(paths []string) (found []string, err error) {
	for _, path := range paths {
		if path == manifestPath || c.has(path) {
			continue
		}
		at, err := disk.NewWalker(c.tree)
		if err == nil {
			_, err = statAt(at, path)
			at.Close()
		}
		switch {
		case err == nil:
			found = append(found, path)
		case !isAlteration(err):
			return nil, c.failed(err)
		}
	}
	return found, nil
}

// read returns the files whose type or content differs, of the given ones, or of all if only is nil.
func (c *comparison) read(only []string) (found []Difference, err error) {
	at, err := disk.NewWalker(c.tree)
	if err != nil {
		return nil, c.failed(err)
	}
	defer at.Close()
	buffer, wanted := make([]byte, compareStep), map[string]bool{}
	for _, path := range only {
		wanted[path] = true
	}
	for _, t := range c.made {
		if only != nil && !wanted[t.path] {
			continue
		}
		same, err := c.isSame(at, t, buffer)
		switch {
		case c.ctx.Err() != nil:
			return nil, context.Cause(c.ctx)
		case isAlteration(err):
			found = append(found, Difference{t.path, errors.Is(err, os.ErrNotExist)})
		case err != nil:
			return nil, c.failed(err)
		case !same:
			found = append(found, Difference{Path: t.path})
		}
	}
	return found, nil
}

// isSame compares the type and the content of a file with its entry.
func (c *comparison) isSame(at *disk.Walker, t tracked, buffer []byte) (bool, error) {
	st, err := statAt(at, t.path)
	if err != nil {
		return false, err
	}
	full := filepath.Join(c.tree, filepath.FromSlash(t.path))
	switch {
	case t.mode == filemode.Submodule:
		return st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
	case st.Mode&(unix.S_IFMT|0o100) != FileType(t.mode):
		return false, nil
	case t.mode == filemode.Symlink:
		target, err := os.Readlink(full)
		return t.hash.Format().Hash(plumbing.BlobObject, []byte(target)) == t.hash, err
	case number(t.raw[36:]) != uint32(st.Size):
		return false, nil
	}
	file, err := os.OpenFile(full, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer file.Close()
	sum, large := t.hash.Format().NewHasher(plumbing.BlobObject, st.Size), sha256.New()
	for {
		n, err := file.Read(buffer)
		_, _ = sum.Write(buffer[:n])
		if c.hasLarge {
			_, _ = large.Write(buffer[:n])
		}
		switch {
		case errors.Is(err, io.EOF):
			return sum.ID() == t.hash || c.hasLarge && c.pointed(t.hash, [sha256.Size]byte(large.Sum(nil)), st.Size), nil
		case err != nil:
			return false, err
		}
		if err := c.pace(c.ctx, int64(n)); err != nil {
			return false, err
		}
	}
}

// isAlteration reports whether a name cannot be read because somebody has altered the tree.
func isAlteration(err error) bool {
	for _, cause := range []error{unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EACCES, unix.EPERM, unix.ENXIO} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

func (c *comparison) failed(err error) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return disk.Error("compare a tree", err)
}
