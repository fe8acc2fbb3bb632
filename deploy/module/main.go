// Command module moves the tree to another module path, in place: make module MODULE=github.com/YOU/lockstep. It changes the
// module of each go.mod, imports and links in comments of all Go files, paths of commands that tests build, and the rules of
// golangci-lint. Names that are no package paths, such as Redis keys, sources of events and tracers, stay. It can be run again,
// with any other path.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./deploy/module MODULE, such as github.com/YOU/lockstep")
		os.Exit(2)
	}
	changed, err := move(".", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "module:", err)
		os.Exit(1)
	}
	fmt.Printf("%d files changed; check with: go build ./... && go vet ./... && make test\n", changed)
}

var modulePath = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~-]*(/[A-Za-z0-9][A-Za-z0-9._~-]*)*$`)

// mover moves the files below root from one module path to another.
type mover struct{ root, from, to string }

// move moves the tracked files below root to the module path to, and returns the number of changed files.
func move(root, to string) (changed int, err error) {
	if !modulePath.MatchString(to) {
		return 0, fmt.Errorf("module path %q: want words of letters, digits and ._~- with slashes between them", to)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return 0, err
	}
	m := mover{root: root, to: to}
	if found := regexp.MustCompile(`(?m)^module (\S+)$`).FindSubmatch(mod); found != nil {
		m.from = string(found[1])
	}
	if m.from == "" {
		return 0, errors.New("go.mod has no module line")
	}
	if m.from == to {
		return 0, nil
	}
	list := exec.Command("git", "-C", root, "ls-files", "-z")
	list.Stderr = os.Stderr
	files, err := list.Output()
	if err != nil {
		return 0, fmt.Errorf("list the files of the repository: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		edit := m.editOf(name)
		if edit == nil {
			continue
		}
		done, err := rewrite(filepath.Join(root, name), edit)
		if err != nil {
			return changed, fmt.Errorf("%s: %w", name, err)
		}
		if done {
			changed++
		}
	}
	return changed, nil
}

// editOf returns how a file is changed, or nil if it stays.
func (m mover) editOf(name string) func(text string) (string, error) {
	switch base := filepath.Base(name); {
	case strings.HasSuffix(base, ".go"):
		return m.goFile
	case base == "go.mod":
		return m.replacing(`(?m)^(module |require |replace |\t)`)
	case name == ".golangci.yml":
		return m.replacing(`(pkg: |allow: \[|, )`)
	}
	return nil
}

// replacing replaces module paths that follow a match of before.
func (m mover) replacing(before string) func(string) (string, error) {
	path := regexp.MustCompile(before + regexp.QuoteMeta(m.from) + `([/,\s$}\]]|$)`)
	return func(text string) (string, error) {
		for { // a separator may belong to two matches
			next := path.ReplaceAllString(text, "${1}"+strings.ReplaceAll(m.to, "$", "$$")+"${2}")
			if next == text {
				return text, nil
			}
			text = next
			if strings.HasPrefix(m.to, m.from) {
				return text, nil
			}
		}
	}
}

// goFile replaces imports, links of comments to packages, and strings that name a command of the module.
func (m mover) goFile(text string) (string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.ParseComments)
	if err != nil {
		return "", err
	}
	type edit struct {
		at, end int
		text    string
	}
	var edits []edit
	imports := map[*ast.BasicLit]bool{}
	for _, spec := range file.Imports {
		imports[spec.Path] = true
	}
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		path, err := strconv.Unquote(lit.Value)
		rest, within := strings.CutPrefix(path, m.from)
		if err != nil || !within || rest != "" && rest[0] != '/' || !imports[lit] && !m.isCommand(rest) {
			return true
		}
		edits = append(edits, edit{set.Position(lit.Pos()).Offset, set.Position(lit.End()).Offset, strconv.Quote(m.to + rest)})
		return true
	})
	link := regexp.MustCompile(`\[` + regexp.QuoteMeta(m.from) + `(/[^]\s]*)\]`)
	for _, group := range file.Comments {
		at, end := set.Position(group.Pos()).Offset, set.Position(group.End()).Offset
		for _, found := range link.FindAllStringSubmatchIndex(text[at:end], -1) {
			edits = append(edits, edit{at + found[0], at + found[1], "[" + m.to + text[at+found[2]:at+found[3]] + "]"})
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.at - b.at })
	for _, e := range slices.Backward(edits) {
		text = text[:e.at] + e.text + text[e.end:]
	}
	return text, nil
}

// isCommand reports whether a path below the module is a folder with a main.go.
func (m mover) isCommand(rest string) bool {
	if rest == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(m.root, filepath.FromSlash(rest), "main.go"))
	return err == nil
}

func rewrite(path string, edit func(string) (string, error)) (changed bool, err error) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false, err
	}
	before, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	after, err := edit(string(before))
	if err != nil || after == string(before) {
		return false, err
	}
	return true, os.WriteFile(path, []byte(after), info.Mode().Perm())
}
