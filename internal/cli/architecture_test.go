package cli

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/proctest"
)

// The map of files in docs/architecture.md has a section for each package, or for a few, whose heading names them.
// Its tables name files as they are in those packages' folders, or with a path from the module's.
var (
	mapSection = regexp.MustCompile(`(?m)^### (.*)$`)
	quoted     = regexp.MustCompile("`([^`]+)`")
)

func TestTheMapIsOfThisTree(t *testing.T) {
	const root = "../.."
	text := string(proctest.Must(os.ReadFile(root + "/docs/architecture.md"))(t))
	_, files, found := strings.Cut(text, "\n## Files\n")
	if !found {
		t.Fatal("docs/architecture.md has no section Files")
	}
	packages := packageFolders(t, root)
	for _, pkg := range packages {
		if !strings.Contains(text, "`"+pkg+"`") && !strings.Contains(files, "`"+pkg+"/") {
			t.Errorf("docs/architecture.md does not say what package %s is for", pkg)
		}
	}

	named := map[string]bool{}
	headings := mapSection.FindAllStringSubmatchIndex(files, -1)
	for i, heading := range headings {
		end := len(files)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		folders := []string{"."}
		for _, name := range quoted.FindAllStringSubmatch(files[heading[2]:heading[3]], -1) {
			folders = append(folders, name[1])
		}
		for line := range strings.Lines(files[heading[1]:end]) {
			cells := strings.Split(line, "|")
			if len(cells) < 3 {
				continue
			}
			for _, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
				matches := filesNamed(t, root, folders, name[1])
				if len(matches) == 0 {
					t.Errorf("docs/architecture.md names %s under %q, and there is none", name[1], files[heading[2]:heading[3]])
				}
				for _, match := range matches {
					named[match] = true
				}
			}
		}
	}
	for _, pkg := range packages {
		for _, pattern := range []string{"*.go", "*.lua", "lua/*.lua"} {
			for _, file := range filesNamed(t, root, []string{pkg}, pattern) {
				if !strings.HasSuffix(file, "_test.go") && !named[file] {
					t.Errorf("the map in docs/architecture.md does not say what %s is for", file)
				}
			}
		}
	}
}

// packageFolders are the folders of the module's packages, but for those that have tests alone.
func packageFolders(t *testing.T, root string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", "{{if .GoFiles}}{{.ImportPath}}{{end}}", "./...")
	cmd.Dir = root
	out := proctest.Must(cmd.Output())(t)
	var folders []string
	for line := range strings.Lines(string(out)) {
		folders = append(folders, strings.TrimPrefix(strings.TrimSpace(line), "lockstep/"))
	}
	return slices.DeleteFunc(folders, func(folder string) bool { return folder == "" })
}

// filesNamed are the files that a name, perhaps with a star, has in any of the folders.
func filesNamed(t *testing.T, root string, folders []string, name string) (found []string) {
	t.Helper()
	for _, folder := range folders {
		for _, match := range proctest.Must(filepath.Glob(filepath.Join(root, folder, filepath.FromSlash(name))))(t) {
			found = append(found, path.Clean(filepath.ToSlash(proctest.Must(filepath.Rel(root, match))(t))))
		}
	}
	return found
}
