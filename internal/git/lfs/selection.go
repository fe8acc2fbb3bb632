package lfs

import (
	"encoding/json"
	"slices"

	"github.com/bmatcuk/doublestar/v4"

	"lockstep/internal/git/wildmatch"
)

// Selection selects the LFS files of a tree whose content is fetched: those that at least one filter selects.
// All others stay pointers. The zero Selection selects none.
type Selection []Filter

// Filter selects files by globs, in which ** crosses folders. Without Include it selects what lfs.fetchinclude of the
// commit's .lfsconfig does, else all files; without Exclude it excludes what lfs.fetchexclude does.
type Filter struct {
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
}

// String returns a text that is equal for selections of the same filters in any order, and "" for the zero Selection.
func (s Selection) String() string {
	var texts []string
	for _, f := range s {
		sorted := Filter{slices.Sorted(slices.Values(f.Include)), slices.Sorted(slices.Values(f.Exclude))}
		text, err := json.Marshal(Filter{slices.Compact(sorted.Include), slices.Compact(sorted.Exclude)})
		if err != nil {
			panic(err) // impossible: they are texts
		}
		texts = append(texts, string(text))
	}
	slices.Sort(texts)
	line := ""
	for i, text := range slices.Compact(texts) {
		if i > 0 {
			line += ","
		}
		line += text
	}
	if line == "" {
		return ""
	}
	return "[" + line + "]"
}

// ParseSelection parses the result of String.
func ParseSelection(text string) (s Selection, err error) {
	if text == "" {
		return nil, nil
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// selects reports whether a file is selected, given its path in the tree at a folder. m matches the globs of
// config, which are of that tree.
func (s Selection) selects(m *wildmatch.Matcher, config Config, folder, path string) bool {
	return slices.ContainsFunc(s, func(f Filter) bool {
		included := len(f.Include) == 0 || anyGlob(f.Include, folder+path)
		if len(f.Include) == 0 && len(config.Include) > 0 {
			included = anyPattern(m, config.Include, path)
		}
		switch {
		case !included:
			return false
		case len(f.Exclude) > 0:
			return !anyGlob(f.Exclude, folder+path)
		}
		return !anyPattern(m, config.Exclude, path)
	})
}

func anyGlob(globs []string, path string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return doublestar.MatchUnvalidated(glob, path) })
}
