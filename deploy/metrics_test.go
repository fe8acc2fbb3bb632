package deploy

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const metricsManual = "../docs/metrics.md"

// TestManualListsTheMetrics compares the table of metrics with the exported ones.
func TestManualListsTheMetrics(t *testing.T) {
	row := regexp.MustCompile("^\\| `(lockstep_\\w+)` \\| (\\w+) \\|([^|]*)\\| ([^|]+) \\| (.+) \\|$")
	type metric struct{ kind, labels string }
	listed := map[string]metric{}
	for line := range strings.Lines(string(read(t, metricsManual))) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| `lockstep_") {
			continue
		}
		cells := row.FindStringSubmatch(line)
		if cells == nil {
			t.Errorf("not a row of a metric: %s", line)
			continue
		}
		if _, again := listed[cells[1]]; again {
			t.Errorf("%s is listed twice", cells[1])
		}
		labels := regexp.MustCompile(`\w+`).FindAllString(cells[3], -1)
		slices.Sort(labels)
		listed[cells[1]] = metric{cells[2], strings.Join(labels, " ")}
	}
	exported, samples := map[string]metric{}, scrapeAll(t)
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (lockstep_\w+) (\w+)$`).FindAllStringSubmatch(exposition(t), -1) {
		name, kind := found[1], found[2]
		sample := name
		if kind == "histogram" {
			sample += "_count"
		}
		var labels []string
		for label := range samples[sample] {
			labels = append(labels, label)
		}
		slices.Sort(labels)
		exported[name] = metric{kind, strings.Join(labels, " ")}
	}
	for name, want := range exported {
		if got, ok := listed[name]; !ok {
			t.Errorf("%s is not in %s", name, metricsManual)
		} else if got != want {
			t.Errorf("%s is listed as a %s with labels %q; it is a %s with %q", name, got.kind, got.labels, want.kind, want.labels)
		}
	}
	for name := range listed {
		if _, ok := exported[name]; !ok {
			t.Errorf("%s has %s, which is not exported", metricsManual, name)
		}
	}
	for _, found := range regexp.MustCompile(`lockstep_[a-z_]+\*?`).FindAllString(string(read(t, metricsManual)), -1) {
		prefix, all := strings.CutSuffix(found, "*")
		known := all || samples[found] != nil || listed[found].kind != ""
		if !known || all && !slices.ContainsFunc(samples.names(), func(name string) bool { return strings.HasPrefix(name, prefix) }) {
			t.Errorf("%s: unknown metric %s", metricsManual, found)
		}
	}
}

// TestManualListsTheClasses compares the classes of errors in labels with the existing ones.
func TestManualListsTheClasses(t *testing.T) {
	manual := string(read(t, metricsManual))
	source := string(read(t, "../events/error.go"))
	found := regexp.MustCompile(`Class\w+ +Class = "(\w+)"`).FindAllStringSubmatch(source, -1)
	if len(found) < 15 {
		t.Fatalf("only %d classes found", len(found))
	}
	for _, class := range found {
		if !strings.Contains(manual, "`"+class[1]+"`") {
			t.Errorf("%s does not name the class %s", metricsManual, class[1])
		}
	}
}
