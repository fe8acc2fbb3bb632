package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"lockstep/internal/testenv"
)

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func run(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

func TestPackagePathsMoveAndNamesStay(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	before := map[string]string{
		"go.mod":          "module app\n\ngo 1.26.0\n",
		"sub/go.mod":      "// A module of its own.\nmodule app/sub\n\nrequire app v0.0.0\n\nreplace app => ../\n",
		"cmd/app/main.go": "package main\n\nimport (\n\t\"fmt\"\n\n\tother \"app/events\"\n)\n\nfunc main() { fmt.Println(other.A, \"app/cmd/app\", \"app/events\", \"app\", `x app/cmd/app`) } // app/events\n",
		"doc.go":          "// Package app has [app/events.A], [app/events] and [app].\npackage app\n\n// See [app/events].\nconst B = \"[app/events]\"\n",
		"events/a.go":     "package events\n\nconst A = 1\n",
		"near/b.go":       "package near\n\nimport _ \"apple/events\"\n",
		".golangci.yml":   "deny: [{pkg: app, desc: app/x}, {pkg: app/internal}]\nallow: [app/events$, app/tree]\n",
		"README.md":       "app/events\n",
	}
	write(t, root, before)
	run(t, root, "git", "init", "-q")
	run(t, root, "git", "add", "-A")
	check := func(path string, changed int) {
		t.Helper()
		if n, err := move(root, path); n != changed || err != nil {
			t.Fatalf("move to %s: %d files changed, %v; want %d", path, n, err, changed)
		}
	}
	check("example.org/you/app", 5)
	for name, want := range map[string]string{
		"go.mod":          "module example.org/you/app\n\ngo 1.26.0\n",
		"sub/go.mod":      "// A module of its own.\nmodule example.org/you/app/sub\n\nrequire example.org/you/app v0.0.0\n\nreplace example.org/you/app => ../\n",
		"cmd/app/main.go": "package main\n\nimport (\n\t\"fmt\"\n\n\tother \"example.org/you/app/events\"\n)\n\nfunc main() { fmt.Println(other.A, \"example.org/you/app/cmd/app\", \"app/events\", \"app\", `x app/cmd/app`) } // app/events\n",
		"doc.go":          "// Package app has [example.org/you/app/events.A], [example.org/you/app/events] and [app].\npackage app\n\n// See [example.org/you/app/events].\nconst B = \"[app/events]\"\n",
		"near/b.go":       before["near/b.go"],
		".golangci.yml":   "deny: [{pkg: example.org/you/app, desc: app/x}, {pkg: example.org/you/app/internal}]\nallow: [example.org/you/app/events$, example.org/you/app/tree]\n",
		"README.md":       before["README.md"],
	} {
		if got, err := os.ReadFile(filepath.Join(root, name)); string(got) != want || err != nil {
			t.Errorf("%s, %v:\n%s\nwant\n%s", name, err, got, want)
		}
	}
	check("example.org/you/app", 0)
	check("example.org/you/app/v2", 5) // the old path is the beginning of the new one
	check("app", 5)
	for name, want := range before {
		if got, err := os.ReadFile(filepath.Join(root, name)); string(got) != want || err != nil {
			t.Errorf("%s is not as it was, %v:\n%s", name, err, got)
		}
	}
	for _, wrong := range []string{"", "/app", "a b", "app/", "https://example.org/app", "a/../b"} {
		if _, err := move(root, wrong); err == nil {
			t.Errorf("module path %q was accepted", wrong)
		}
	}
}

// TestWholeTreeMoves moves a copy of this tree, builds and vets it, and runs tests that build programs by package path.
func TestWholeTreeMoves(t *testing.T) {
	if !testenv.Soaking() {
		t.Skip("soak test: compiles everything again")
	}
	root := filepath.Join(t.TempDir(), "moved")
	run(t, "../..", "git", "clone", "-q", ".", root)
	if _, err := move(root, "example.org/you/lockstep"); err != nil {
		t.Fatal(err)
	}
	run(t, root, "go", "build", "./...")
	run(t, root, "go", "vet", "./...")
	run(t, root, "go", "-C", "bench", "vet", "./...")
	run(t, root, "make", "fmt-check")
	run(t, root, "go", "test", "./events/...", "./locking", "./internal/publictest", "./internal/watch", "./examples/publish")
}
