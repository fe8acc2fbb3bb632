// Package view selects parts of trees. A view is named and has paths, and a [Set] has the views of a watch.
//
//	set, err := view.New(map[string][]string{"guide": {"docs/guide"}, "code": {"**/*.go", "go.mod"}})
//	if err != nil {
//		return err
//	}
//	matches, err := set.Match([]string{"docs/guide/start.md", "README.md"})
//	matches.Views() // guide
//
// # Paths
//
// A path selects the file, link or gitlink that it names and everything below a folder that it names. It
// starts at the top of the tree, with or without a slash. In a segment *, ? and [a-z] match as in Git; ** as
// a whole segment matches any number of folders, and at the end everything in the folder. A slash at the end
// stands for /**. A backslash quotes the next character. Names are compared by bytes. A view has what git
// sparse-checkout set --no-cone checks out for the same paths, each with a slash in front.
//
// # Cost
//
// The paths of all views form one trie, compiled on first use. Matching a changed path costs a look-up per
// segment, however many views there are, plus one match per pattern beside it.
package view

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"lockstep/internal/git/wildmatch"
)

// Limits of a Set.
const (
	MaxViews = 10_000
	maxPaths = 100     // of a view
	maxPath  = 1024    // bytes of a path
	maxBytes = 4 << 20 // in all names and paths
)

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// Set is a set of views. It is immutable and safe for concurrent use. A nil Set has no views.
type Set struct {
	paths map[string][]string // by view; sorted, without duplicates
	names []string            // of the views, sorted

	once   sync.Once
	top    *node
	digest string
}

// New returns the set of views with the given names and paths, or nil if there are none. Errors say what to do.
func New(views map[string][]string) (*Set, error) {
	if len(views) == 0 {
		return nil, nil
	}
	if len(views) > MaxViews {
		return nil, fmt.Errorf("%d views: want at most %d", len(views), MaxViews)
	}
	checked, bytes := make(map[string][]string, len(views)), 0
	for name, paths := range views {
		switch {
		case !namePattern.MatchString(name):
			return nil, fmt.Errorf("view %.110q: want letters, digits and ._-, at most 100", name)
		case len(paths) == 0 || len(paths) > maxPaths:
			return nil, fmt.Errorf("view %s: want 1 to %d paths", name, maxPaths)
		}
		bytes += len(name)
		clean := make([]string, len(paths))
		for i, path := range paths {
			var err error
			if clean[i], err = cleanPath(path); err != nil {
				return nil, fmt.Errorf("view %s: path %.110q: %w", name, path, err)
			}
			bytes += len(clean[i])
		}
		slices.Sort(clean)
		checked[name] = slices.Compact(clean)
	}
	if bytes > maxBytes {
		return nil, fmt.Errorf("the names and paths of all views have more than %d MiB; use fewer or shorter paths",
			maxBytes>>20)
	}
	return newSet(checked), nil
}

func newSet(paths map[string][]string) *Set {
	return &Set{paths: paths, names: slices.Sorted(maps.Keys(paths))}
}

// cleanPath validates a path and returns it without a slash at its ends: a path that ends in one selects what
// is in a folder.
func cleanPath(path string) (string, error) {
	clean, isFolder := strings.CutSuffix(strings.TrimPrefix(path, "/"), "/")
	switch {
	case clean == "":
		return "", errors.New(`want a path in the tree; ** is the whole tree`)
	case clean[0] == '!':
		return "", errors.New(`paths cannot be excluded; write \! for a name that begins with !`)
	case strings.ContainsRune(clean, 0) || strings.ContainsRune(clean, utf8.RuneError):
		// which JSON decodes other bytes to
		return "", errors.New("has a NUL or is not UTF-8; write ? for each such byte")
	case endsInSpace(path): // which Git ignores
		return "", errors.New(`ends in a space or line break; remove it, or write a \ in front`)
	}
	segments := strings.Split(clean, "/")
	for i, segment := range segments {
		switch {
		case len(segment) > 2 && strings.Trim(segment, "*") == "": // as in Git
			segments[i] = "**"
		case segment == "" || segment == "." || segment == "..":
			return "", errors.New(`has a segment that is empty, "." or ".."`)
		case !wildmatch.IsValid(segment):
			return "", errors.New(`has a [ without ], or ends in \`)
		}
		if err := checkSegment(segment); err != nil {
			return "", err
		}
	}
	if last := len(segments) - 1; isFolder {
		if segments[last] == "**" { // which is any name in the folder above, and below it
			segments[last] = "*"
		}
		segments = append(segments, "**")
	}
	if clean = strings.Join(segments, "/"); len(clean) > maxPath {
		return "", fmt.Errorf("want at most %d bytes", maxPath)
	}
	return clean, nil
}

func endsInSpace(path string) bool {
	text := strings.TrimRight(path, " \r\n")
	quotes := len(text) - len(strings.TrimRight(text, `\`))
	return len(path)-len(text) > quotes%2
}

// checkSegment refuses what Git would take for other names than its author: alternatives in braces, folders
// separated by backslashes, and ** within a name, which in Git crosses folders or not depending on what
// precedes it.
func checkSegment(segment string) error {
	for i := 0; i < len(segment); i++ {
		switch segment[i] {
		case '*':
			if strings.HasPrefix(segment[i:], "**") && strings.Trim(segment, "*") != "" {
				return errors.New("has ** within a name; use *")
			}
		case '\\':
			if i++; isLetter(segment[i]) {
				return errors.New(`has a \ before a letter; separate folders with /`)
			}
		case '{', '}':
			return errors.New(`braces are not alternatives here: add a path for each, or write \{ and \} for the characters`)
		}
	}
	return nil
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' }

// Len returns the number of views.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.names)
}

// All iterates over the names of the views, sorted, and their paths, which must not be modified.
func (s *Set) All() iter.Seq2[string, []string] {
	return func(yield func(string, []string) bool) {
		if s == nil {
			return
		}
		for _, name := range s.names {
			if !yield(name, s.paths[name]) {
				return
			}
		}
	}
}

// Has reports whether the set has a view of that name.
func (s *Set) Has(name string) bool { return s != nil && s.paths[name] != nil }

// Map returns the paths of each view, which must not be modified; nil for no views.
func (s *Set) Map() map[string][]string {
	if s == nil {
		return nil
	}
	return s.paths
}

// Only returns a set with only the named views, which must exist.
func (s *Set) Only(names ...string) *Set {
	paths := make(map[string][]string, len(names))
	for _, name := range names {
		paths[name] = s.paths[name]
	}
	return newSet(paths)
}

// Digest returns a short text that is equal for sets with the same names and paths.
func (s *Set) Digest() string {
	s.compile()
	return s.digest
}

// String returns the set as MarshalJSON does.
func (s *Set) String() string {
	text, _ := s.MarshalJSON()
	return string(text)
}

// MarshalJSON encodes the set as an object of lists of paths.
func (s *Set) MarshalJSON() ([]byte, error) { return json.Marshal(s.Map()) }

// UnmarshalJSON decodes and validates what MarshalJSON encodes.
func (s *Set) UnmarshalJSON(document []byte) error {
	var views map[string][]string
	if err := json.Unmarshal(document, &views); err != nil {
		return errors.New("views: want an object with a list of paths for each view")
	}
	return s.set(views)
}

// MarshalYAML encodes the set as a mapping of lists of paths.
func (s *Set) MarshalYAML() (any, error) { return s.Map(), nil }

// UnmarshalYAML decodes and validates what MarshalYAML encodes.
func (s *Set) UnmarshalYAML(decode func(into any) error) error {
	var views map[string][]string
	if err := decode(&views); err != nil {
		return err
	}
	return s.set(views)
}

func (s *Set) set(views map[string][]string) error {
	decoded, err := New(views)
	if err != nil {
		return fmt.Errorf("views: %w", err)
	}
	s.paths, s.names = decoded.Map(), nil
	if decoded != nil {
		s.names = decoded.names
	}
	return nil
}

// compile makes the trie and the digest.
func (s *Set) compile() {
	s.once.Do(func() {
		s.top = &node{}
		sum := sha256.New()
		for i, name := range s.names {
			fmt.Fprintf(sum, "%s\x00", name)
			for _, path := range s.paths[name] {
				fmt.Fprintf(sum, "%s\x00", path)
				s.top.insert(strings.Split(path, "/"), int32(i))
			}
			fmt.Fprint(sum, "\x00")
		}
		s.digest = hex.EncodeToString(sum.Sum(nil)[:16])
	})
}
