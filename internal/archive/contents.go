package archive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"lockstep/internal/git/checkout"
	"lockstep/tree"
)

// ErrAltered means that a tree is not as it was built.
var ErrAltered = errors.New("the published tree was altered; lockstep repos verify --repair has the next " +
	"sync replace it")

const (
	maxPaths        = 100
	maxPath         = 1024 // bytes
	maxBraces       = 4    // in each
	maxAlternatives = 200  // of all globs: each is compared with each file
)

// Options select files.
type Options struct {
	// Paths are files, folders or globs as in watches (** crosses folders), from [ParsePaths]; empty selects all.
	// A backslash escapes characters of globs.
	Paths []string
	// Submodules includes the files of submodules.
	Submodules bool
}

// Contents are files of an open tree.
type Contents struct {
	tree  *tree.Tree
	git   checkout.GitDir
	opts  Options
	names []string // opts.Paths without escapes
}

// ParsePaths validates paths for [Options], sorts them and removes duplicates. It refuses globs that would
// take long to match.
func ParsePaths(list []string) ([]string, error) {
	if len(list) > maxPaths {
		return nil, fmt.Errorf("paths: want at most %d", maxPaths)
	}
	paths, patterns := make([]string, 0, len(list)), 0
	for _, one := range list {
		clean := strings.TrimSuffix(one, "/")
		if len(one) > maxPath || !isBelow(clean) || strings.Count(one, "{") > maxBraces ||
			!doublestar.ValidatePattern(clean) {
			return nil, fmt.Errorf("paths: %.110q: want a file, a folder or a glob, relative to the top of the repository", one)
		}
		if patterns += alternatives(clean); patterns > maxAlternatives {
			return nil, fmt.Errorf("paths: {a,b} stands for two globs; want at most %d in all", maxAlternatives)
		}
		paths = append(paths, clean)
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// isBelow reports whether a path is relative, in its shortest form, and below the top. It need not be UTF-8.
func isBelow(name string) bool {
	return name != "" && name != "." && name == path.Clean(name) && name[0] != '/' && name != ".." &&
		!strings.HasPrefix(name, "../")
}

// alternatives returns the maximum number of globs without braces that a glob expands to, or a
// number above maxAlternatives. It does not parse the glob: n braces with c commas in total expand
// to the most if each has the same number of commas.
func alternatives(glob string) int {
	braces, all := strings.Count(glob, "{"), 1
	for range braces {
		if all *= 1 + (strings.Count(glob, ",")+braces-1)/braces; all > maxAlternatives {
			break
		}
	}
	return all
}

var escape = regexp.MustCompile(`(?s)\\(.)`)

// New returns the selected files of a tree, which must stay open.
func New(t *tree.Tree, opts Options) *Contents {
	c := &Contents{tree: t, git: checkout.GitDirOf(t.Dir()), opts: opts}
	for _, glob := range opts.Paths {
		c.names = append(c.names, escape.ReplaceAllString(glob, "$1"))
	}
	return c
}

func (c *Contents) selects(file string) bool {
	for i, glob := range c.opts.Paths {
		if isIn(file, c.names[i]) || doublestar.MatchUnvalidated(glob, file) {
			return true
		}
	}
	return len(c.opts.Paths) == 0
}

// isIn reports whether a file has a path or is in the folder with it.
func isIn(file, name string) bool {
	return strings.HasPrefix(file, name) && (len(file) == len(name) || file[len(name)] == '/')
}

// Each calls visit for each selected file, by path, until it returns an error.
func (c *Contents) Each(ctx context.Context, visit func(checkout.TreeFile) error) error {
	err := c.git.List(c.opts.Submodules, func(f checkout.TreeFile) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !c.selects(f.Path) {
			return nil
		}
		return visit(f)
	})
	if errors.Is(err, checkout.ErrBadManifest) || errors.Is(err, fs.ErrNotExist) {
		return ErrAltered
	}
	return err
}

// Summary describes files without reading them.
type Summary struct {
	Files  int    // with links and submodules
	Digest string // 32 hexadecimal digits; equal for equal files
}

// Summary reads the list of files.
func (c *Contents) Summary(ctx context.Context) (Summary, error) {
	sum, files := sha256.New(), 0
	text := func(s string) {
		_ = binary.Write(sum, binary.BigEndian, uint32(len(s)))
		_, _ = sum.Write([]byte(s))
	}
	text(c.git.Large())
	var head [8]byte
	err := c.Each(ctx, func(f checkout.TreeFile) error {
		files++
		binary.BigEndian.PutUint32(head[:], f.Mode)
		binary.BigEndian.PutUint32(head[4:], uint32(len(f.Path)))
		_, _ = sum.Write(head[:])
		_, _ = sum.Write([]byte(f.Path))
		_, _ = sum.Write(f.Blob.Bytes())
		return nil
	})
	return Summary{files, hex.EncodeToString(sum.Sum(nil)[:16])}, err
}

// ETag returns the strong entity tag of the archive in a format.
func (s Summary) ETag(f Format) string { return fmt.Sprintf(`"%s-%s-%s"`, s.Digest, f, Version) }
