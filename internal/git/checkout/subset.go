package checkout

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// Pointed reports whether a blob is a pointer to content with this SHA-256 and size in bytes, as with Git LFS.
type Pointed func(blob object.ID, sum [sha256.Size]byte, size int64) bool

// Subset is some of the files of a published tree. [Subset.Build] makes a tree of only these.
type Subset struct {
	from  *Tree
	files manifest
}

// Select returns the files of the tree that a selection has. A submodule is selected as a whole, with its
// files. The cost follows the number of names in the folders that the selection enters.
func (t *Tree) Select(at Selection) (*Subset, error) {
	all, err := t.read()
	if err != nil {
		return nil, err
	}
	s := &Subset{from: t}
	s.add(all, "", at, t.parts.filled())
	return s, nil
}

// add adds the selected files of a folder, whose path is the prefix.
func (s *Subset) add(files manifest, prefix string, at Selection, filled map[string]object.ID) {
	if at.IsSelected() {
		s.files = append(s.files, files...)
		return
	}
	for len(files) > 0 {
		name, _, isFolder := strings.Cut(files[0].path[len(prefix):], "/")
		n := 1
		if isFolder {
			end := prefix + name + "0" // the byte after the slash
			n = sort.Search(len(files), func(i int) bool { return files[i].path >= end })
		}
		_, isPart := filled[prefix+name]
		switch below := at.Enter(name); {
		case below == nil:
		case below.IsSelected():
			s.files = append(s.files, files[:n]...)
		case isFolder && !isPart:
			s.add(files[:n], prefix+name+"/", below, filled)
		}
		files = files[n:]
	}
}

// Len returns the number of files.
func (s *Subset) Len() int { return len(s.files) }

// Variant is "" if the files are as their blobs say, so that the ID of the filtered tree identifies them.
// Otherwise some may be files of Git LFS or of submodules, or links may have been omitted, and Variant is a
// text that is equal only for equal files.
func (s *Subset) Variant() string {
	plain := s.from.large == "" && s.from.links != LinksSkip
	for i := 0; plain && i < len(s.files); i++ {
		plain = !s.files[i].inPart
	}
	if plain {
		return ""
	}
	sum := sha256.New()
	for _, t := range s.files {
		_, _ = io.WriteString(sum, t.raw) // identifies the file on disk
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}

// IsPlain reports whether the files of the tree are as their blobs say: see [Subset.Variant].
func (t *Tree) IsPlain() bool { return t.large == "" && t.links != LinksSkip && !t.parts.isFilled() }

// FileModes are the types and permissions of new files: see [ProbeModes].
type FileModes struct{ modes fileModes }

// ProbeModes determines the modes of new files in a folder without a .git.
func ProbeModes(dir string) (FileModes, error) {
	modes, err := probeModes(dir)
	return FileModes{modes}, disk.Error("build the tree", err)
}

// Build makes a tree of the files at dst, which must not exist: hard links, or copies of files that have been
// altered or have too many links. ref and commit are those of the published tree. It returns the paths of its
// new files, relative to dst.
func (s *Subset) Build(
	ctx context.Context, objects *object.Store, dst string, ref string, commit object.ID, modes FileModes, pointed Pointed,
) (written []string, err error) {
	defer object.RecoverCorrupt(&err)
	if err := os.Mkdir(dst, 0o755); err != nil {
		return nil, buildError(err)
	}
	to, err := disk.NewWalker(dst)
	if err != nil {
		return nil, buildError(err)
	}
	defer to.Close()
	from, err := disk.NewWalker(s.from.path)
	if err != nil {
		return nil, buildError(err)
	}
	defer from.Close()
	made := make(manifest, len(s.files))
	for i, t := range s.files {
		if ctx.Err() != nil {
			return nil, stoppedBuild(ctx)
		}
		linked, err := s.make(ctx, objects, to, from, t, modes.modes, pointed, &made[i])
		if err != nil {
			return nil, err
		}
		if !linked {
			written = append(written, t.path)
		}
	}
	own, err := s.writeGit(dst, ref, commit, made)
	return append(written, own...), disk.Error("write the tree's .git", err)
}

// make creates one file and its manifest entry.
func (s *Subset) make(
	ctx context.Context, objects *object.Store, to, from *disk.Walker, t tracked, modes fileModes, pointed Pointed,
	made *tracked,
) (linked bool, err error) {
	folder, err := to.Enter(disk.Parent(t.path), disk.Dir.OpenOrMake)
	if err != nil {
		return false, buildError(err)
	}
	*made = t
	name := path.Base(t.path)
	if t.mode == filemode.Submodule {
		sub, err := folder.OpenOrMake(name)
		if err != nil {
			return true, buildError(err)
		}
		sub.Close()
		return true, nil
	}
	if _, linked := t.link(folder, from, t.path, modes); linked {
		return true, nil
	}
	if err := s.copy(ctx, objects, folder, t, name, pointed); err != nil {
		return false, fmt.Errorf("check out %q: %w", t.path, err)
	}
	st, err := folder.Stat(name)
	if err != nil {
		return false, buildError(err)
	}
	*made = describe(entry{t.path, t.mode, t.hash, t.inPart}, st, t.hash.Format())
	return false, nil
}

// copy writes a file that cannot be linked: a file of the commit from the store, another one from the published tree.
func (s *Subset) copy(
	ctx context.Context, objects *object.Store, folder disk.Dir, t tracked, name string, pointed Pointed,
) error {
	w := writer{objects: objects, format: t.hash.Format(), links: LinksKeep}
	source := filepath.Join(s.from.path, filepath.FromSlash(t.path))
	switch {
	case t.mode == filemode.Symlink && t.inPart:
		target, err := os.Readlink(source)
		if err != nil || t.hash.Format().Hash(plumbing.BlobObject, []byte(target)) != t.hash {
			return errAltered(err)
		}
		return buildError(folder.Symlink(target, name))
	case t.mode == filemode.Symlink:
		_, err := w.writeLink(folder, entry{t.path, t.mode, t.hash, false}, name)
		return err
	case s.from.large == "" && !t.inPart:
		return w.writeFile(ctx, folder, entry{t.path, t.mode, t.hash, false}, name)
	}
	from, err := os.OpenFile(source, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return errAltered(err)
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return errAltered(err)
	}
	file, err := w.create(folder, entry{t.path, t.mode, t.hash, t.inPart}, name)
	if err != nil {
		return err
	}
	sum, large := t.hash.Format().NewHasher(plumbing.BlobObject, info.Size()), sha256.New()
	size, err := io.Copy(object.CancelWriter{Ctx: ctx, Writer: io.MultiWriter(file, &sum, large)}, from)
	if err = errors.Join(err, file.Close()); err != nil {
		return buildError(err)
	}
	if sum.ID() != t.hash && (s.from.large == "" || !pointed(t.hash, [sha256.Size]byte(large.Sum(nil)), size)) {
		return errAltered(nil)
	}
	return nil
}

// errAltered is the error for a file whose content is not that of the published tree any more.
func errAltered(err error) error {
	return object.Corruptf("the published tree has been altered; it will be replaced: %w", cmp.Or(err, errContentDiffers))
}

var errContentDiffers = errors.New("the file has other content")

// writeGit writes the .git of the tree: only what pins, names and compares it. It is not a Git repository,
// because equal trees of several commits are one. It returns its files.
func (s *Subset) writeGit(dst string, ref string, commit object.ID, made manifest) (written []string, err error) {
	g := GitDirOf(dst)
	if err := os.Mkdir(g.Dir, 0o755); err != nil {
		return nil, err
	}
	contents := map[string]string{
		g.Manifest():                            string(made.encode(commit.Format())),
		filepath.Join(g.Dir, "lockstep-commit"): commit.String() + "\n",
		g.Pin():                                 "",
		g.Ref():                                 ref + "\n",
	}
	if s.from.links != LinksKeep {
		contents[filepath.Join(g.Dir, linksName)] = string(s.from.links) + "\n"
	}
	if s.from.large != "" {
		contents[filepath.Join(g.Dir, largeName)] = s.from.large + "\n"
	}
	for file, content := range contents {
		if err := os.WriteFile(file, []byte(content), permRegular); err != nil {
			return nil, err
		}
		written = append(written, ".git/"+filepath.Base(file))
	}
	return written, nil
}
