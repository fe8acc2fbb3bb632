package validate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// TestReleaseConfiguration validates .goreleaser.yaml by GoReleaser's schema, which knows all properties.
func TestReleaseConfiguration(t *testing.T) {
	dirs, err := modules()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(dirs["github.com/goreleaser/goreleaser/v2"], "www/docs/static/schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile("../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	check := func(text string) error {
		t.Helper()
		var parsed any
		if err := yaml.Unmarshal([]byte(text), &parsed); err != nil {
			t.Fatal(err)
		}
		document, err := plain(parsed)
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(document)
	}
	if err := check(string(content)); err != nil {
		t.Error(err)
	}
	for _, wrong := range [][2]string{
		{"mod_timestamp:", "mod_timestmap:"}, {"algorithm: sha256", "algorithm: [sha256]"}, {"artifacts: binary", "artifacts: binaries"}, {"formats: [tar.gz]", "format: {tar: gz}"},
	} {
		text := strings.Replace(string(content), wrong[0], wrong[1], 1)
		if text == string(content) || check(text) == nil {
			t.Errorf("%s instead of %s was accepted", wrong[1], wrong[0])
		}
	}
}
