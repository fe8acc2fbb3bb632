package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"lockstep/internal/proctest"
)

// TestLinksInDocumentsResolve checks that the file and heading of each relative link exist, in all Markdown files.
func TestLinksInDocumentsResolve(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	found := 0
	for path, text := range documentsWithoutCode(t) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target := match[1]
			if strings.Contains(target, "://") {
				continue
			}
			found++
			name, anchor, _ := strings.Cut(target, "#")
			file := path
			if name != "" {
				file = filepath.Join(filepath.Dir(path), filepath.FromSlash(name))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: broken link %s", path, target)
				continue
			}
			if anchor != "" && !anchorsOf(string(proctest.Must(os.ReadFile(file))(t)))[anchor] {
				t.Errorf("%s: broken link %s: no heading #%s", path, target, anchor)
			}
		}
	}
	if found == 0 {
		t.Error("found no links in the documents")
	}
}

// documentsWithoutCode returns the text of all Markdown files without fenced blocks, by path.
func documentsWithoutCode(t *testing.T) map[string]string {
	t.Helper()
	documents := map[string]string{}
	for _, path := range filesOf(t, ".md") {
		var text strings.Builder
		fenced := false
		for line := range strings.Lines(string(proctest.Must(os.ReadFile(path))(t))) {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			} else if !fenced {
				text.WriteString(line)
			}
		}
		documents[path] = text.String()
	}
	return documents
}

// filesOf returns the paths of all files with the suffix.
func filesOf(t *testing.T, suffix string) []string {
	t.Helper()
	var paths []string
	proctest.Must(0, filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case strings.HasSuffix(path, suffix):
			paths = append(paths, path)
		}
		return nil
	}))(t)
	return paths
}

// anchorsOf returns the anchors that GitHub gives to headings: in lower case, without punctuation, with hyphens for spaces
// and numbers for duplicates.
func anchorsOf(text string) map[string]bool {
	heading := regexp.MustCompile(`^#+ +(.*?)\s*$`)
	linked := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped := regexp.MustCompile(`[^\pL\pN_ -]`)
	anchors, times, fenced := map[string]bool{}, map[string]int{}, false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		match := heading.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if fenced || match == nil {
			continue
		}
		anchor := strings.ToLower(linked.ReplaceAllString(match[1], "$1"))
		anchor = strings.ReplaceAll(dropped.ReplaceAllString(anchor, ""), " ", "-")
		if n := times[anchor]; n > 0 {
			anchors[anchor+"-"+strconv.Itoa(n)] = true
		} else {
			anchors[anchor] = true
		}
		times[anchor]++
	}
	return anchors
}
