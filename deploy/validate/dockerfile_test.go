package validate

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// stages parses the stages of the Dockerfile with BuildKit and fails the test on linter warnings.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	content, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := parser.Parse(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range tree.Warnings {
		t.Errorf("%s: %s", warning.URL, warning.Short)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, text string, at []parser.Range) {
		t.Errorf("line %d: %s: %s", at[0].Start.Line, rule, text)
	}})
	all, _, err := instructions.Parse(tree.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// last returns the only instruction of its kind in a stage.
func last[T instructions.Command](t *testing.T, stage instructions.Stage) T {
	t.Helper()
	var found []T
	for _, command := range stage.Commands {
		if c, ok := command.(T); ok {
			found = append(found, c)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d instructions of type %T, want one", len(found), *new(T))
	}
	return found[0]
}

func TestImageIsOneStaticBinary(t *testing.T) {
	all := stages(t)
	if len(all) != 2 {
		t.Fatalf("%d stages", len(all))
	}
	build, image := all[0], all[1]
	if build.Platform != "$BUILDPLATFORM" {
		t.Errorf("compiled on %q, which may be emulated", build.Platform)
	}
	if image.BaseName != "scratch" {
		t.Errorf("the image is based on %s", image.BaseName)
	}
	if user := last[*instructions.UserCommand](t, image).User; user != "65532:65532" {
		t.Errorf("user %s: want numbers, for Kubernetes to see that it is not root", user)
	}
	if entry := last[*instructions.EntrypointCommand](t, image); entry.PrependShell || !slices.Equal(entry.CmdLine, []string{"/lockstep"}) {
		t.Errorf("entry point %v", entry)
	}
	if check := last[*instructions.HealthCheckCommand](t, image).Health; !slices.Equal(check.Test, []string{"CMD", "/lockstep", "healthcheck"}) {
		t.Errorf("healthcheck %q: there is no shell", check.Test)
	}
	if signal := last[*instructions.StopSignalCommand](t, image).Signal; signal != "SIGTERM" {
		t.Errorf("stop signal %s", signal)
	}
	described := map[string]bool{}
	for _, label := range last[*instructions.LabelCommand](t, image).Labels {
		described[strings.Trim(label.Key, `"`)] = true
	}
	for _, label := range []string{"title", "description", "licenses", "version", "revision"} {
		if !described["org.opencontainers.image."+label] {
			t.Errorf("no label org.opencontainers.image.%s", label)
		}
	}
	for _, command := range image.Commands {
		if run, ok := command.(*instructions.RunCommand); ok {
			t.Errorf("%s: the image cannot run it", run)
		}
	}
	var compiles, hasTemp bool
	for _, command := range build.Commands {
		run, ok := command.(*instructions.RunCommand)
		hasTemp = hasTemp || ok && strings.Contains(strings.Join(run.CmdLine, " "), "-m 1777 /out/volume/tmp")
		compiles = compiles || ok && strings.Contains(strings.Join(run.CmdLine, " "), "CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath")
	}
	if !hasTemp {
		t.Error("the image has no /tmp that everybody can write to")
	}
	if !compiles {
		t.Error("the binary is not static, or not for the target platform")
	}
}

// Podman 4 refuses relative targets of mounts and the start interval of health checks; Docker before 25 refuses the latter, too.
func TestDockerfileBuildsWithPodman4(t *testing.T) {
	content, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile(`--mount=\S*target=([^,\s]*)`).FindAllSubmatch(content, -1)
	if len(targets) < 4 {
		t.Errorf("%d mounts", len(targets))
	}
	for _, target := range targets {
		if !strings.HasPrefix(string(target[1]), "/") {
			t.Errorf("%s: want an absolute target", target[0])
		}
	}
	all := stages(t)
	trusts := slices.ContainsFunc(all[0].Commands, func(command instructions.Command) bool {
		run, ok := command.(*instructions.RunCommand)
		line := ""
		if ok {
			line = strings.Join(run.CmdLine, " ")
		}
		return strings.Contains(line, "go build") && strings.Contains(line, "GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=/src")
	})
	if !trusts {
		t.Error("Git does not trust a folder of another user, and go build fails to read the commit")
	}
	if check := last[*instructions.HealthCheckCommand](t, all[len(all)-1]).Health; check.StartInterval != 0 {
		t.Errorf("the health check has a start interval of %v", check.StartInterval)
	}
}

// If a tracked file were missing from the build context, the binary would report a modified tree.
func TestBuildContextContainsTrackedFiles(t *testing.T) {
	file, err := os.Open("../../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	patterns, err := ignorefile.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Skip("not a Git repository")
	}
	for name := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		if left, err := ignored.MatchesOrParentMatches(name); err != nil || left {
			t.Errorf("%s is tracked, but missing from the context: %v", name, err)
		}
	}
	for _, name := range []string{"deploy/secrets/api-token", "deploy/kubernetes/overlays/trial/api-token", "lockstep.yaml", "bin/lockstep"} {
		if left, err := ignored.MatchesOrParentMatches(name); err != nil || !left {
			t.Errorf("%s is in the context: %v", name, err)
		}
	}
}
