package starve

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"lockstep/internal/stats"
)

func TestTableMarksMissedTargets(t *testing.T) {
	var report Report
	latency := func(d time.Duration) Latency {
		return Latency{Latency: stats.Latency{P50: d, P99: 2 * d, Max: 2 * d}, Changes: 1}
	}
	report.compare(latency(10*time.Millisecond), latency(15*time.Millisecond))
	report.addWithin(1.3, "p99 ratio", report.RatioP99)
	report.addWithin(0, "attempts", 0)
	report.add("seconds", 1.23456)
	var table bytes.Buffer
	if err := report.Table(&table); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(table.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	text := strings.Join(got, "\n")
	for _, want := range []string{"loaded 15 30 30 1 0 0", "p99 ratio 1.5 target 1.3: missed", "attempts 0 target 0\n", "seconds 1.235"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestCountHandlersThatCouldNotSettle(t *testing.T) {
	var report Report
	count(&report, [][4]int64{{1, 10, 20, 21}, {2, 10, 20, 0}, {2, 30, 40, 41}, {3, 10, 20, 0}, {3, 30, 40, 0}, {3, 50, 60, 61}})
	if len(report.Figures) != 2 || report.Figures[0].Value != 3 || report.Figures[1].Value != 2 {
		t.Errorf("figures %+v; want 3 handlers, and 2 jobs worked on twice", report.Figures)
	}
}
