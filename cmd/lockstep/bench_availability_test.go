package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"lockstep/bench/availability"
)

func TestBenchAvailabilityOfLockstepIsWhole(t *testing.T) {
	longBench(t)
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	plot := filepath.Join(t.TempDir(), "plot.svg")
	stdout, stderr, code := runLockstep(t, nil, "bench", "availability", "--duration", "4s", "--files", "60", "--readers", "2", "--plot", plot, "--json")
	if code != exitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report availabilityReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if len(report.Contestants) != 3 {
		t.Fatalf("contestants %+v; want three", report.Contestants)
	}
	for _, c := range report.Contestants {
		if c.Reads == 0 || c.Syncs == 0 || c.Pushes == 0 || c.Forced != c.Pushes/forcedEvery || len(c.OverTime) == 0 {
			t.Errorf("%s: %+v; want reads, syncs and pushes, every tenth by force", c.Name, c)
		}
		if (c.Name == sideLockstep) != (c.Killed > 0) {
			t.Errorf("%s: %d workers were killed", c.Name, c.Killed)
		}
	}
	if c := report.Contestants[2]; c.Name != sideLockstep || c.Whole != c.Reads || c.Failed > 0 {
		t.Errorf("%+v; want Lockstep, and all its reads whole", c)
	}
	svg := string(must(os.ReadFile(plot))(t))
	if !strings.HasPrefix(svg, "<svg") || strings.Count(svg, "<polyline") != 3 {
		t.Errorf("the plot is %s", svg)
	}
	var table bytes.Buffer
	if err := report.print(&table, output{}); err != nil || !strings.Contains(table.String(), "100.000 %") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestAReaderTellsWhatIsWrongWithATree(t *testing.T) {
	r := &availabilityRun{availabilityBench: &availabilityBench{files: 12}}
	write := func(t *testing.T, dir string, files map[string]string) {
		for path, content := range files {
			path = filepath.Join(dir, path)
			must(0, os.MkdirAll(filepath.Dir(path), 0o700))(t)
			must(0, os.WriteFile(path, []byte(content), 0o600))(t)
		}
	}
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string)
		want   availability.TreeRead
	}{
		"nothing": {func(*testing.T, string) {}, availability.TreeRead{Versions: []int{7}}},
		"a file is missing": {
			func(t *testing.T, dir string) { must(0, os.Remove(filepath.Join(dir, r.path(3))))(t) },
			availability.TreeRead{Missing: 1, Versions: []int{7}},
		},
		"a file is empty": {
			func(t *testing.T, dir string) { must(0, os.Truncate(filepath.Join(dir, r.path(11)), 0))(t) },
			availability.TreeRead{Torn: 1, Versions: []int{7}},
		},
		"a file lacks its end": {
			func(t *testing.T, dir string) { must(0, os.Truncate(filepath.Join(dir, r.path(11)), 50))(t) },
			availability.TreeRead{Torn: 1, Versions: []int{7}},
		},
		"a file is of another version": {
			func(t *testing.T, dir string) {
				write(t, dir, map[string]string{r.path(5): r.version(8)[r.path(5)]})
			},
			availability.TreeRead{Versions: []int{7, 8}},
		},
		"there is no tree": {func(t *testing.T, dir string) { must(0, os.RemoveAll(dir))(t) }, availability.TreeRead{Missing: 12}},
	} {
		dir := filepath.Join(t.TempDir(), "tree")
		write(t, dir, r.version(7))
		tc.change(t, dir)
		if got, err := r.readOnce(dir); err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, tc.want)
		}
	}
}

func TestBenchAvailabilityFailsBelowAllReads(t *testing.T) {
	result := func(name string, whole int) availabilityResult {
		return availabilityResult{Name: name, Availability: availability.Availability{Reads: 100_000, Whole: whole, Versions: 9, Missing: 100_000 - whole}}
	}
	sound := availabilityReport{Contestants: []availabilityResult{result("reset in place", 3), result(sideLockstep, 100_000)}}
	if err := sound.verdict(); err != nil {
		t.Errorf("got %v; want no error", err)
	}
	for name, report := range map[string]availabilityReport{
		"one read":       {Contestants: []availabilityResult{result(sideLockstep, 99_999)}},
		"did not happen": {Contestants: []availabilityResult{result("reset in place", 100_000)}},
	} {
		if err := report.verdict(); err == nil || exitCode(err) != exitFailed {
			t.Errorf("%s: got %v; want a failure", name, err)
		}
	}
}

func TestAWorkerThatEndsByItselfIsNoVictim(t *testing.T) {
	w := &lockstepWorker{cmd: exec.Command("sh", "-c", "echo out of order; exit 3")}
	w.cmd.Stdout = &w.said
	_ = w.cmd.Run()
	if err := w.kill(); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("got %v; want what it said", err)
	}
	w = &lockstepWorker{cmd: exec.Command("sleep", "60")}
	must(0, w.cmd.Start())(t)
	if err := w.kill(); err != nil {
		t.Errorf("one that was killed: %v", err)
	}
}

func TestBenchAvailabilityRefusesNonsense(t *testing.T) {
	for name, args := range map[string][]string{
		"no time":     {"--duration", "0s"},
		"one file":    {"--files", "1"},
		"no readers":  {"--readers", "0"},
		"no workers":  {"--workers", "0"},
		"an argument": {"now"},
	} {
		if err := runBench(t, nil, io.Discard, append([]string{"availability"}, args...)...); exitCode(err) != exitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
