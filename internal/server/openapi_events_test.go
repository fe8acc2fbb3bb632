package server_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// schema returns a schema of the document by name.
func schema(t *testing.T, name string) *openapi3.Schema {
	t.Helper()
	ref := document().Components.Schemas[name]
	if ref == nil {
		t.Fatalf("openapi.yaml has no schema %s", name)
	}
	return ref.Value
}

// TestEventsMatchSchemas validates the golden events of package events, as stored and as written again, against the
// schemas. It also finds properties in the schemas that no event has.
func TestEventsMatchSchemas(t *testing.T) {
	t.Parallel()
	const golden = "../../events/testdata"
	had := map[string]bool{}
	for glob, name := range map[string]string{"change_*_v1.json": "ChangeEvent", "result_*.json": "ResultEvent", "change_plain.json": "PlainChange"} {
		files, err := filepath.Glob(filepath.Join(golden, glob))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", glob, len(files), err)
		}
		for _, file := range files {
			text := testenv.Must(os.ReadFile(file))(t)
			for _, document := range [][]byte{text, written(t, name, text)} {
				var value map[string]any
				testenv.Must(0, json.Unmarshal(document, &value))(t)
				if name == "PlainChange" && value["specversion"] != nil {
					continue // plain changes are written as events
				}
				if err := schema(t, name).VisitJSON(value, openapi3.EnableJSONSchema2020()); err != nil {
					t.Errorf("%s is not a valid %s: %v\n%s", file, name, err, document)
				}
				for field := range value {
					had[name+" "+field] = true
				}
				data, _ := value["data"].(map[string]any)
				for field := range data {
					had[name+" data."+field] = true
				}
			}
		}
	}
	for _, name := range []string{"ChangeEvent", "ResultEvent"} {
		properties := slices.Collect(maps.Keys(schema(t, name).Properties))
		for field := range schema(t, name).Properties["data"].Value.Properties {
			properties = append(properties, "data."+field)
		}
		for _, field := range properties {
			if !had[name+" "+field] {
				t.Errorf("%s has the property %s, but no event in %s does", name, field, golden)
			}
		}
	}
}

// written parses an event and formats it again.
func written(t *testing.T, name string, document []byte) []byte {
	t.Helper()
	var event json.Marshaler
	var err error
	if name == "ResultEvent" {
		event, err = events.ParseResult(document)
	} else {
		event, err = events.ParseChange(document)
	}
	if err != nil {
		t.Fatal(err)
	}
	text := testenv.Must(json.Marshal(event))(t)
	return text
}

// TestEnumsMatchConstants compares the schemas' enums with the constants of package events.
func TestEnumsMatchConstants(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	for _, name := range []string{"change.go", "envelope.go", "result.go", "error.go"} {
		text := testenv.Must(os.ReadFile(filepath.Join("../../events", name)))(t)
		source.Write(text)
	}
	change, result := schema(t, "ChangeEvent"), schema(t, "ResultEvent")
	for kind, enum := range map[string][]any{
		"ChangeType": change.Properties["type"].Value.Enum, "ResultType": result.Properties["type"].Value.Enum,
		"FileStatus": schema(t, "File").Properties["status"].Value.Enum, "Class": schema(t, "Class").Enum, "BusyPolicy": schema(t, "BusyPolicy").Enum,
	} {
		var want, got []string
		for _, found := range regexp.MustCompile(`\b`+kind+`\s+= "([^"]+)"`).FindAllStringSubmatch(source.String(), -1) {
			want = append(want, found[1])
		}
		for _, value := range enum {
			got = append(got, value.(string))
		}
		slices.Sort(want)
		slices.Sort(got)
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s: openapi.yaml has %q, want %q", kind, got, want)
		}
	}
}
