// Package publictest checks that programs outside this module can use the public packages.
package publictest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestOutsideProgramCompiles(t *testing.T) {
	t.Parallel()
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(repo, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	first, rest, _ := strings.Cut(read("go.mod"), "\n")
	module := strings.TrimPrefix(first, "module ")
	mod := "module example.com/outside\n" + rest + "\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + repo + "\n"
	for name, content := range map[string]string{"go.mod": mod, "go.sum": read("go.sum"), "main.go": read("internal/publictest/testdata/program.go")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The flags of make build share its cache.
	vet := exec.CommandContext(t.Context(), "go", "vet", ".")
	vet.Dir, vet.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod -trimpath", "GOPROXY=off", "GOWORK=off")
	if output, err := vet.CombinedOutput(); err != nil {
		t.Fatalf("go vet: %v\n%s", err, output)
	}
}
