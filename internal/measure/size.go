package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"lockstep/internal/config"
)

// support names the folders of test support: code that only tests, benchmarks and the demo run.
var support = []string{
	"internal/gitclients/", "internal/gitea/", "internal/gitserver/", "internal/logtest/", "internal/measure/",
	"internal/proctest/",
	"internal/redistest/", "internal/stats/", "internal/testenv/",
}

const maxFunction = 80 // lines

// kindOf returns the kind of a file of code. A test outside bench, examples and deploy is a test also in a
// support folder.
func kindOf(path string) string {
	for _, dir := range []string{"bench", "examples", "deploy"} {
		if strings.HasPrefix(path, dir+"/") {
			return dir
		}
	}
	if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "internal/e2e/") {
		return "tests"
	}
	if slices.ContainsFunc(support, func(dir string) bool { return strings.HasPrefix(path, dir) }) {
		return "support"
	}
	return "product"
}

// size holds the counts of a checkout.
type size struct {
	lines, files map[string]int // by kind
	folders      map[string]int // lines of the product by package group
	exported     int            // top-level names, and methods of exported types, of the product
	classes      int            // error classes
	lua, words   int
	functions    int
	long         []string // functions of more than maxFunction lines, longest first
	longest      int
}

func printSize(ctx context.Context) error {
	listed, err := exec.CommandContext(ctx, "git", "ls-files").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	s := size{lines: map[string]int{}, files: map[string]int{}, folders: map[string]int{}}
	for path := range strings.Lines(string(listed)) {
		if err := s.add(strings.TrimSuffix(path, "\n")); err != nil {
			return err
		}
	}
	return s.print()
}

// add counts a file.
func (s *size) add(path string) error {
	extension := filepath.Ext(path)
	isScript := extension == ".mjs" && kindOf(path) == "bench" // the peers in Node
	if extension != ".go" && extension != ".lua" && extension != ".md" && !isScript {
		return nil
	}
	content, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil // deleted, and not committed yet
	}
	if err != nil {
		return err
	}
	if extension == ".md" {
		if path != "CHANGELOG.md" {
			s.words += len(bytes.Fields(content))
		}
		return nil
	}
	kind := kindOf(path)
	lines := bytes.Count(content, []byte("\n"))
	s.lines[kind] += lines
	s.files[kind]++
	if kind != "product" {
		return nil
	}
	s.folders[folderOf(path)] += lines
	if extension == ".lua" {
		s.lua++
		return nil
	}
	return s.parse(path, content)
}

// folderOf returns the first folder of a product's file, and the first two below internal.
func folderOf(path string) string {
	parts := strings.Split(filepath.Dir(path), "/")
	if parts[0] == "internal" {
		return strings.Join(parts[:min(2, len(parts))], "/")
	}
	return parts[0]
}

// parse counts the declarations of a Go file.
func (s *size) parse(path string, content []byte) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			s.functions++
			if d.Name.IsExported() && receiverIsExported(d) {
				s.exported++
			}
			from, to := files.Position(d.Pos()), files.Position(d.End())
			n := to.Line - from.Line + 1
			s.longest = max(s.longest, n)
			if n > maxFunction {
				s.long = append(s.long, fmt.Sprintf("%4d %s:%d %s", n, path, from.Line, d.Name.Name))
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				s.count(spec, path)
			}
		}
	}
	return nil
}

// count counts the exported names of a type, variable or constant.
func (s *size) count(spec ast.Spec, path string) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if spec.Name.IsExported() {
			s.exported++
		}
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if name.IsExported() {
				s.exported++
			}
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Class" && path == "events/error.go" {
				s.classes++
			}
		}
	}
}

// receiverIsExported reports whether d is a function, or a method of an exported type.
func receiverIsExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	exported := false
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		name, ok := n.(*ast.Ident)
		if ok && !exported {
			exported = name.IsExported()
		}
		return !ok
	})
	return exported
}

func (s *size) print() error {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "lines\tfiles\t ")
	for _, kind := range []string{"product", "tests", "support", "bench", "examples", "deploy"} {
		fmt.Fprintf(out, "%d\t%d\t %s\n", s.lines[kind], s.files[kind], kind)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	settings := pflag.NewFlagSet("all", pflag.ContinueOnError)
	config.AddFlags(settings, ^config.Group(0))
	names := 0
	settings.VisitAll(func(f *pflag.Flag) { names++ })
	fmt.Printf("\n%d exported names, %d functions (longest %d lines, %d above %d)\n", s.exported, s.functions,
		s.longest, len(s.long), maxFunction)
	fmt.Printf("%d Lua scripts, %d settings, %d error classes, %d words of documents\n\n", s.lua, names, s.classes,
		s.words)
	slices.Sort(s.long)
	slices.Reverse(s.long)
	for _, line := range s.long {
		fmt.Println(line)
	}
	fmt.Println("\nproduct, lines by folder:")
	for _, folder := range slices.SortedFunc(maps.Keys(s.folders), func(a, b string) int {
		return s.folders[b] - s.folders[a]
	}) {
		fmt.Printf("%6d %s\n", s.folders[folder], folder)
	}
	return nil
}
