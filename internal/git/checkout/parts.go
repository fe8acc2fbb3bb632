package checkout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lockstep/internal/git"
	"lockstep/internal/git/object"
)

// Parts are the submodules of a tree, those of submodules included. The zero Parts leave all as empty folders.
type Parts struct {
	Mode string // the setting that the tree was built with; "" for none
	List []Part // sorted by path
}

// Part is a submodule.
type Part struct {
	Path   string    // from the root of the tree
	Commit object.ID // that the tree names
	URL    string

	// Class and Why are the class and the text of the error that left the folder empty; "" if it has the
	// files of the commit.
	Class git.Class
	Why   string

	// Credential is the name of the submodule credential with which fetching a missing submodule was
	// attempted; "" for none.
	Credential string
}

// IsFilled reports whether the folder has the files of the commit.
func (p Part) IsFilled() bool { return p.Class == "" }

// Missing returns the submodules whose folders are empty.
func (p Parts) Missing() (missing []Part) {
	for _, part := range p.List {
		if !part.IsFilled() {
			missing = append(missing, part)
		}
	}
	return missing
}

// Equal reports whether trees of the same commit with these submodules are equal, whatever the reason why
// some are missing, if the credential is the same.
func (p Parts) Equal(other Parts) bool {
	return p.Mode == other.Mode && slices.EqualFunc(p.List, other.List, func(a, b Part) bool {
		return a.Path == b.Path && a.Commit == b.Commit && a.URL == b.URL && a.IsFilled() == b.IsFilled() &&
			a.Credential == b.Credential
	})
}

// Filled returns the submodules that have files.
func (p Parts) Filled() (filled []Part) {
	for _, part := range p.List {
		if part.IsFilled() {
			filled = append(filled, part)
		}
	}
	return filled
}

func (p Parts) isFilled() bool { return slices.ContainsFunc(p.List, Part.IsFilled) }

// filled returns the commits of the submodules that have files, by path.
func (p Parts) filled() map[string]object.ID {
	commits := map[string]object.ID{}
	for _, part := range p.List {
		if part.IsFilled() {
			commits[part.Path] = part.Commit
		}
	}
	return commits
}

// treeIn returns [Links].part for these submodules, whose objects are in a store.
func (p Parts) treeIn(objects *object.Store) func(commit object.ID) (tree object.ID, ok bool) {
	commits := map[object.ID]bool{}
	for _, commit := range p.filled() {
		commits[commit] = true
	}
	if len(commits) == 0 {
		return nil
	}
	return func(commit object.ID) (object.ID, bool) {
		if !commits[commit] {
			return object.ZeroID, false
		}
		return objects.TreeOf(commit)
	}
}

// String returns the text that [ParseParts] parses.
func (p Parts) String() string {
	if p.Mode == "" {
		return ""
	}
	var text strings.Builder
	text.WriteString(p.Mode + "\n")
	for _, part := range p.List {
		fmt.Fprintf(&text, "%s %q %q %q %q %q\n", part.Commit, part.Path, part.URL, part.Class, part.Why, part.Credential)
	}
	return text.String()
}

// ParseParts parses the result of String.
func ParseParts(text string) (p Parts, err error) {
	mode, list, _ := strings.Cut(text, "\n")
	if p.Mode = mode; mode == "" {
		return Parts{}, errBadParts
	}
	for line := range strings.Lines(list) {
		commit, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		var fields [5]string
		for n := range fields {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return Parts{}, errBadParts
			}
			if fields[n], err = strconv.Unquote(quoted); err != nil {
				return Parts{}, errBadParts
			}
			rest = strings.TrimPrefix(rest[len(quoted):], " ")
		}
		if !object.IsID(commit) || rest != "" {
			return Parts{}, errBadParts
		}
		p.List = append(p.List, Part{
			Path: fields[0], Commit: object.ParseID(commit), URL: fields[1], Class: git.Class(fields[2]),
			Why: fields[3], Credential: fields[4],
		})
	}
	return p, nil
}

var errBadParts = errors.New("not a list of submodules, or damaged")

// partsName is a file in trees that were built with submodules enabled. The file [GitDir.PartsManifest] lists
// the files of submodules, because the index has only their folders, as in Git.
const partsName = "lockstep-submodules"

// PartsManifest returns the path of the list of the submodules' files, a Git index of version 2. Trees
// without such files have none.
func (g GitDir) PartsManifest() string { return filepath.Join(g.Dir, "lockstep-submodules-index") }

// Parts returns the submodules that the tree was built with. The error is errBadParts, or that of a file operation.
func (g GitDir) Parts() (Parts, error) {
	content, err := os.ReadFile(filepath.Join(g.Dir, partsName))
	if errors.Is(err, os.ErrNotExist) {
		return Parts{}, nil
	}
	if err != nil {
		return Parts{}, err
	}
	return ParseParts(string(content))
}

// readFiles reads the manifest and the list of the submodules' files.
func (g GitDir) readFiles(format object.Format) (manifest, error) {
	own, err := readManifest(g.Manifest(), format)
	if err != nil {
		return nil, err
	}
	parts, err := g.Parts()
	switch {
	case errors.Is(err, errBadParts):
		return nil, ErrBadManifest
	case err != nil || !parts.isFilled():
		return own, err
	}
	inParts, err := readManifest(g.PartsManifest(), format)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrBadManifest
	}
	for i := range inParts {
		inParts[i].inPart = true
	}
	return own.merge(inParts), err
}

// merge returns the entries of both manifests.
func (m manifest) merge(other manifest) manifest {
	all := make(manifest, 0, len(m)+len(other))
	for len(m) > 0 && len(other) > 0 {
		next := &m
		if other[0].path < m[0].path {
			next = &other
		}
		all, *next = append(all, (*next)[0]), (*next)[1:]
	}
	return append(append(all, m...), other...)
}

// split returns the entries of the commit itself, and those of its submodules.
func (m manifest) split() (own, inParts manifest) {
	for _, t := range m {
		if t.inPart {
			inParts = append(inParts, t)
		} else {
			own = append(own, t)
		}
	}
	return own, inParts
}

// hasBelow reports whether m has entries in a folder. It may begin with any entry before them.
func (m manifest) hasBelow(folder string) bool {
	// They follow entries whose names begin with that of the folder and a byte before the slash.
	i, _ := slices.BinarySearchFunc(m, folder+"/", func(t tracked, path string) int {
		return strings.Compare(t.path, path)
	})
	return i < len(m) && strings.HasPrefix(m[i].path, folder+"/")
}

// Parts returns the submodules that the plan has.
func (p *Plan) Parts() Parts { return p.parts }

// Parts returns the submodules that the tree was built with. It accepts nil.
func (t *Tree) Parts() Parts {
	if t == nil {
		return Parts{}
	}
	return t.parts
}
