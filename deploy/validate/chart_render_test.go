package validate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

const (
	chartDir  = "../chart"
	release   = "lockstep"
	namespace = "lockstep"
)

// renderChart renders the chart's templates with values, like helm template. It has Helm's functions of templates and Helm's
// parser, and checks values.schema.json, but not Helm itself, which takes a minute to compile: TestHelmRendersTheSame
// compares them. It returns the rendered files by name, or the error that Helm would report.
func renderChart(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	return renderRelease(t, release, values)
}

// renderRelease is renderChart with the name of a release.
func renderRelease(t *testing.T, release string, values map[string]any) (map[string]string, error) {
	t.Helper()
	all := parseYAML(t, readFile(t, "values.yaml"))
	overlay(all, values)
	if err := checkValues(t, all); err != nil {
		return nil, err
	}
	about := parseYAML(t, readFile(t, "Chart.yaml"))
	data := map[string]any{
		"Values":  all,
		"Chart":   map[string]any{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
		"Release": map[string]any{"Name": release, "Namespace": namespace, "Service": "Helm"},
		"Files":   chartFiles{t},
	}
	templates := template.New("chart").Option("missingkey=zero")
	templates.Funcs(chartFunctions(templates))
	names, err := fs.Glob(os.DirFS(chartDir), "templates/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := templates.New(name).Parse(readFile(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{}
	for _, name := range names {
		if strings.HasPrefix(filepath.Base(name), "_") {
			continue
		}
		var text bytes.Buffer
		if err := templates.ExecuteTemplate(&text, name, data); err != nil {
			return nil, err
		}
		if strings.Contains(text.String(), "<no value>") {
			t.Errorf("%s uses a value that is not there:\n%s", name, &text)
		}
		files[name] = text.String()
	}
	return files, nil
}

// chartFunctions returns the functions that Helm adds to those of text/template, without a cluster to look things up in.
func chartFunctions(templates *template.Template) template.FuncMap {
	functions := sprig.TxtFuncMap()
	delete(functions, "env")
	delete(functions, "expandenv")
	maps.Copy(functions, template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var text strings.Builder
			err := templates.ExecuteTemplate(&text, name, data)
			return text.String(), err
		},
		"tpl": func(text string, data any) (string, error) {
			copied, err := templates.Clone()
			if err != nil {
				return "", err
			}
			parsed, err := copied.New("tpl").Parse(text)
			if err != nil {
				return "", err
			}
			var result strings.Builder
			err = parsed.Execute(&result, data)
			return result.String(), err
		},
		"toYaml": func(value any) string {
			text, err := yaml.Marshal(value)
			if err != nil {
				return ""
			}
			return strings.TrimSuffix(string(text), "\n")
		},
		"toJson": func(value any) string {
			text, err := json.Marshal(value)
			if err != nil {
				return ""
			}
			return string(text)
		},
		"lookup": func(_, _, _, _ string) map[string]any { return map[string]any{} },
		"fail":   func(text string) (string, error) { return "", errors.New(text) },
	})
	return functions
}

// chartFiles is .Files of a template.
type chartFiles struct{ t *testing.T }

// Get returns the content of a file of the chart.
func (f chartFiles) Get(name string) string { return readFile(f.t, name) }

func readFile(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(chartDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// parseYAML reads a file of values as Helm does: numbers are floats.
func parseYAML(t *testing.T, text string) map[string]any {
	t.Helper()
	var values map[string]any
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return values
}

// overlay merges maps, and removes what is null.
func overlay(into, values map[string]any) {
	for key, value := range values {
		below, isMap := value.(map[string]any)
		old, wasMap := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && wasMap:
			overlay(old, below)
		default:
			into[key] = value
		}
	}
}

// checkValues validates values against values.schema.json, with the library and the dialect of Helm.
func checkValues(t *testing.T, values map[string]any) error {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(readFile(t, "values.schema.json")))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("values.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(values)
}

// chartObjects returns the objects of the chart with values, sorted by name.
func chartObjects(t *testing.T, values map[string]any) []object {
	t.Helper()
	return releaseObjects(t, release, values)
}

// releaseObjects is chartObjects with the name of a release.
func releaseObjects(t *testing.T, release string, values map[string]any) []object {
	t.Helper()
	files, err := renderRelease(t, release, values)
	if err != nil {
		t.Fatal(err)
	}
	var objects []object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			objects = append(objects, documents(t, files[name])...)
		}
	}
	return sorted(objects)
}

// documents returns the objects of a stream of YAML documents.
func documents(t *testing.T, text string) []object {
	t.Helper()
	var objects []object
	for _, document := range strings.Split("\n"+text, "\n---") {
		if o := read(t, []byte(document)); len(o) > 0 {
			objects = append(objects, o)
		}
	}
	return objects
}

func sorted(objects []object) []object {
	slices.SortFunc(objects, func(a, b object) int { return strings.Compare(a.String(), b.String()) })
	return objects
}

// example returns the values of a file in ci.
func example(t *testing.T, name string) map[string]any {
	t.Helper()
	return parseYAML(t, readFile(t, fmt.Sprintf("ci/%s-values.yaml", name)))
}
