package deploy

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestManualListsTheMetrics compares the rows of docs/metrics.md with the exported metrics, their types and their labels.
func TestManualListsTheMetrics(t *testing.T) {
	word := regexp.MustCompile(`\w+`)
	row := regexp.MustCompile("(?m)^\\| `(lockstep_\\w+)` \\| (\\w+) \\|([^|]*)\\|")
	listed, exported := map[string]string{}, map[string]string{}
	for _, cells := range row.FindAllStringSubmatch(string(read(t, "../docs/metrics.md")), -1) {
		labels := word.FindAllString(cells[3], -1)
		slices.Sort(labels)
		listed[cells[1]] = cells[2] + " " + strings.Join(labels, " ")
	}
	text := exposition(t)
	samples := samplesOf(text)
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (lockstep_\w+) (\w+)$`).FindAllStringSubmatch(text, -1) {
		sample := found[1]
		if found[2] == "histogram" {
			sample += "_count"
		}
		exported[found[1]] = found[2] + " " + strings.Join(slices.Sorted(maps.Keys(samples[sample])), " ")
	}
	for name, want := range exported {
		if listed[name] != want {
			t.Errorf("docs/metrics.md lists %s as %q, want %q", name, listed[name], want)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/metrics.md lists %s, which is not exported", name)
	}
}
