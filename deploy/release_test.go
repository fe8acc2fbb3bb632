package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"lockstep/internal/testenv"
)

// goreleaser is what the tests need of .goreleaser.yaml.
type goreleaser struct {
	Builds []struct {
		Main                string
		Env, Flags, Ldflags []string
	}
	Archives []struct{ Files []any }
	SBOMs    []struct{ Cmd string } `yaml:"sboms"`
	Checksum struct{ Algorithm string }
}

func readRelease(t *testing.T) (r goreleaser) {
	t.Helper()
	if err := yaml.Unmarshal(read(t, "../.goreleaser.yaml"), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Builds) != 1 || len(r.Archives) != 1 || len(r.SBOMs) != 1 || r.Checksum.Algorithm != "sha256" {
		t.Fatalf(".goreleaser.yaml: want one build, one archive, one bill of materials and SHA-256: %+v", r)
	}
	return r
}

// TestReleasesSayTheirVersion builds a tagged clone as GoReleaser and the Dockerfile do.
func TestReleasesSayTheirVersion(t *testing.T) {
	testenv.Long(t)
	clone := filepath.Join(t.TempDir(), "clone")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Skipf("needs a clone of the repository: git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("clone", "-q", "..", clone)
	git("-C", clone, "tag", "v1.98.7")
	revision := git("-C", clone, "rev-parse", "HEAD")

	release := readRelease(t).Builds[0]
	_, line, ok := strings.Cut(string(read(t, "../Dockerfile")), "GOARCH=$TARGETARCH go build ")
	line, _, _ = strings.Cut(line, " -o ")
	if !ok || !slices.Contains(release.Env, "CGO_ENABLED=0") {
		t.Fatal("want go build without cgo in the Dockerfile and in .goreleaser.yaml")
	}
	for name, flags := range map[string][]string{
		"archive": append(slices.Clone(release.Flags), "-ldflags="+strings.Join(release.Ldflags, " ")),
		"image":   strings.Fields(line),
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "lockstep")
			build := exec.CommandContext(t.Context(), "go", append(append([]string{"build"}, flags...), "-o", program, release.Main)...)
			build.Dir, build.Env = clone, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=auto", "GOWORK=off", "GIT_CONFIG_GLOBAL=/dev/null")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.CommandContext(t.Context(), program, "version", "--json").Output()
			var version struct {
				Version, Revision string
				Modified          bool
			}
			if err != nil || json.Unmarshal(out, &version) != nil || version.Version != "v1.98.7" || version.Revision != revision || version.Modified {
				t.Errorf("lockstep version says %s, %v; want v1.98.7 of %s, unmodified", out, err, revision)
			}
		})
	}
}

// TestReleasedFilesExist checks the files of the archives.
func TestReleasedFilesExist(t *testing.T) {
	t.Parallel()
	for _, file := range readRelease(t).Archives[0].Files {
		pattern, ok := file.(string)
		if entry, isMap := file.(map[string]any); isMap {
			pattern, ok = entry["src"].(string)
		}
		if found, err := filepath.Glob(filepath.Join("..", pattern)); !ok || err != nil || len(found) == 0 {
			t.Errorf("archive: %v: found %q, %v", file, found, err)
		}
	}
}

// TestWorkflowsRunCI checks that the workflow of each forge is valid YAML and runs .ci/run.
func TestWorkflowsRunCI(t *testing.T) {
	t.Parallel()
	for _, file := range []string{".github/workflows/ci.yml", ".forgejo/workflows/ci.yml", ".gitlab-ci.yml"} {
		text := read(t, "../"+file)
		var doc map[string]any
		if err := yaml.Unmarshal(text, &doc); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if !strings.Contains(string(text), "golang:1.26-") || !strings.Contains(string(text), ".ci/run\n") {
			t.Errorf("%s: want .ci/run in an image with Go 1.26", file)
		}
	}
}
