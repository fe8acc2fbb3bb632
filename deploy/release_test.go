package deploy

import (
	"regexp"
	"testing"
)

// TestReleaseHasOneVersion compares the version that CHANGELOG.md names first with the tags of the image.
func TestReleaseHasOneVersion(t *testing.T) {
	version := func(path, pattern string) string {
		t.Helper()
		found := regexp.MustCompile(`(?m)` + pattern).FindSubmatch(read(t, path))
		if found == nil {
			t.Fatalf("%s names no version", path)
		}
		return string(found[1])
	}
	want := version("../CHANGELOG.md", `^## (\S+)`)
	for path, pattern := range map[string]string{
		"chart/Chart.yaml":                               `^appVersion: "(.*)"`,
		"chart/ci/production-values.yaml":                `tag: "(.*)"`,
		"kubernetes/overlays/example/kustomization.yaml": `newTag: "(.*)"`,
		"../Dockerfile":                                  `registry\.example\.com/lockstep:(\S+)`,
	} {
		if got := version(path, pattern); got != want {
			t.Errorf("%s has %s, CHANGELOG.md %s", path, got, want)
		}
	}
}
