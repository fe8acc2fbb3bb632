package publish_test

import (
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
)

var update = flag.Bool("update", false, "write the programs into docs/publishing.md")

const root = "../.."

var document = filepath.Join(root, "docs/publishing.md")

// program is a code block in the document with its file name.
var program = regexp.MustCompile("(?s)<!-- (examples/publish/\\S+) -->\n```([a-z]+)\n(.*?)```\n")

func TestDocumentShowsPrograms(t *testing.T) {
	text := read(t, document)
	var shown []string
	today := program.ReplaceAllStringFunc(text, func(block string) string {
		parts := program.FindStringSubmatch(block)
		shown = append(shown, parts[1])
		return "<!-- " + parts[1] + " -->\n```" + parts[2] + "\n" + read(t, filepath.Join(root, parts[1])) + "```\n"
	})
	switch {
	case *update:
		must(t, os.WriteFile(document, []byte(today), 0o644))
	case text != today:
		t.Error("docs/publishing.md does not show the programs as they are; run go test ./examples/publish -run Document -update")
	}
	var programs []string
	must(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.Name() == "node_modules" {
			return fs.SkipDir
		}
		if strings.Contains(path, "/") && slices.Contains([]string{".sh", ".go", ".mjs", ".py"}, filepath.Ext(path)) {
			programs = append(programs, "examples/publish/"+filepath.ToSlash(path))
		}
		return err
	}))
	slices.Sort(shown)
	if !slices.Equal(shown, programs) {
		t.Errorf("the document shows %q, want %q", shown, programs)
	}
}

func TestDocumentPinsSameVersions(t *testing.T) {
	var node struct{ Dependencies map[string]string }
	must(t, json.Unmarshal([]byte(read(t, "node/package.json")), &node))
	for _, pin := range []string{"redis@" + node.Dependencies["redis"], strings.TrimSpace(read(t, "python/requirements.txt"))} {
		if !strings.Contains(read(t, document), "install "+pin+"`") {
			t.Errorf("the document does not say %s", pin)
		}
	}
}

func TestDocumentNamesPlainFields(t *testing.T) {
	var named []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(read(t, document), -1) {
		named = append(named, row[1])
	}
	if want := plainFields(t); !slices.Equal(named, want) {
		t.Errorf("the table has %q, want %q", named, want)
	}
}

// plainFields are the JSON names of the struct in events.parsePlain.
func plainFields(t *testing.T) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "events/envelope.go"), nil, 0)
	must(t, err)
	parsePlain := file.Scope.Lookup("parsePlain")
	if parsePlain == nil {
		t.Fatal("events/envelope.go has no parsePlain")
	}
	ast.Inspect(parsePlain.Decl.(*ast.FuncDecl), func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && field.Tag != nil {
			tag, err := strconv.Unquote(field.Tag.Value)
			must(t, err)
			names = append(names, reflect.StructTag(tag).Get("json"))
		}
		return true
	})
	return names
}

// The document's redis-cli commands and its CloudEvents document parse, and cover every type.
func TestDocumentChangesParse(t *testing.T) {
	var types []events.ChangeType
	for _, line := range regexp.MustCompile(`(?m)^    redis-cli XADD 'lockstep:\{0\}:changes' '\*' (.*)$`).FindAllStringSubmatch(read(t, document), -1) {
		words, fields := strings.Fields(line[1]), map[string]string{}
		for pair := range slices.Chunk(words, 2) {
			fields[pair[0]] = pair[1]
		}
		plain, err := json.Marshal(fields)
		must(t, err)
		change, err := events.ParseChange(plain)
		if err != nil {
			t.Errorf("%s: %v", line[1], err)
		}
		types = append(types, change.Type)
	}
	if want := []events.ChangeType{events.ChangePushed, events.ChangeRemoved, events.ChangeMoved, events.ChangeDue}; !slices.Equal(types, want) {
		t.Errorf("types %q, want %q", types, want)
	}
	cloudEvent := regexp.MustCompile(`(?m)^    (\{"specversion".*\n.*)$`).FindStringSubmatch(read(t, document))
	if cloudEvent == nil {
		t.Fatal("there is no CloudEvents document")
	}
	if change, err := events.ParseChange([]byte(cloudEvent[1])); err != nil || change.ID != "push-4711" {
		t.Errorf("%+v, %v", change, err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}
