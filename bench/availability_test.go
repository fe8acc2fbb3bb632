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
	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
)

func TestBenchAvailabilityOfLockstepIsWhole(t *testing.T) {
	longBench(t)
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	plot := filepath.Join(t.TempDir(), "plot.svg")
	stdout, stderr, code := runProcess(t, "availability", "--duration", "4s", "--files", "60", "--readers", "2", "--plot", plot, "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report availability.AvailabilityReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if len(report.Contestants) != 3 {
		t.Fatalf("contestants %+v; want three", report.Contestants)
	}
	for _, c := range report.Contestants {
		if c.Reads == 0 || c.Syncs == 0 || c.Pushes == 0 || c.Forced != c.Pushes/availability.ForcedEvery || len(c.OverTime) == 0 {
			t.Errorf("%s: %+v; want reads, syncs and pushes, every tenth by force", c.Name, c)
		}
		if (c.Name == availability.SideLockstep) != (c.Killed > 0) {
			t.Errorf("%s: %d workers were killed", c.Name, c.Killed)
		}
	}
	if c := report.Contestants[2]; c.Name != availability.SideLockstep || c.Whole != c.Reads || c.Failed > 0 {
		t.Errorf("%+v; want Lockstep, and all its reads whole", c)
	}
	svg := string(proctest.Must(os.ReadFile(plot))(t))
	if !strings.HasPrefix(svg, "<svg") || strings.Count(svg, "<polyline") != 3 {
		t.Errorf("the plot is %s", svg)
	}
	var table bytes.Buffer
	if err := report.Print(&table, term.Output{}); err != nil || !strings.Contains(table.String(), "100.000 %") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestAReaderTellsWhatIsWrongWithATree(t *testing.T) {
	r := &availability.Deployment{AvailabilityBench: &availability.AvailabilityBench{Files: 12}}
	write := func(t *testing.T, dir string, files map[string]string) {
		for path, content := range files {
			path = filepath.Join(dir, path)
			proctest.Must(0, os.MkdirAll(filepath.Dir(path), 0o700))(t)
			proctest.Must(0, os.WriteFile(path, []byte(content), 0o600))(t)
		}
	}
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string)
		want   availability.TreeRead
	}{
		"nothing": {func(*testing.T, string) {}, availability.TreeRead{Versions: []int{7}}},
		"a file is missing": {
			func(t *testing.T, dir string) { proctest.Must(0, os.Remove(filepath.Join(dir, r.Path(3))))(t) },
			availability.TreeRead{Missing: 1, Versions: []int{7}},
		},
		"a file is empty": {
			func(t *testing.T, dir string) { proctest.Must(0, os.Truncate(filepath.Join(dir, r.Path(11)), 0))(t) },
			availability.TreeRead{Torn: 1, Versions: []int{7}},
		},
		"a file lacks its end": {
			func(t *testing.T, dir string) { proctest.Must(0, os.Truncate(filepath.Join(dir, r.Path(11)), 50))(t) },
			availability.TreeRead{Torn: 1, Versions: []int{7}},
		},
		"a file is of another version": {
			func(t *testing.T, dir string) {
				write(t, dir, map[string]string{r.Path(5): r.Version(8)[r.Path(5)]})
			},
			availability.TreeRead{Versions: []int{7, 8}},
		},
		"there is no tree": {func(t *testing.T, dir string) { proctest.Must(0, os.RemoveAll(dir))(t) }, availability.TreeRead{Missing: 12}},
	} {
		dir := filepath.Join(t.TempDir(), "tree")
		write(t, dir, r.Version(7))
		tc.change(t, dir)
		if got, err := r.ReadOnce(dir); err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, tc.want)
		}
	}
}

func TestBenchAvailabilityFailsBelowAllReads(t *testing.T) {
	result := func(name string, whole int) availability.AvailabilityResult {
		return availability.AvailabilityResult{Name: name, Availability: availability.Availability{Reads: 100_000, Whole: whole, Versions: 9, Missing: 100_000 - whole}}
	}
	sound := availability.AvailabilityReport{Contestants: []availability.AvailabilityResult{result("reset in place", 3), result(availability.SideLockstep, 100_000)}}
	if err := sound.Verdict(); err != nil {
		t.Errorf("got %v; want no error", err)
	}
	for name, report := range map[string]availability.AvailabilityReport{
		"one read":       {Contestants: []availability.AvailabilityResult{result(availability.SideLockstep, 99_999)}},
		"did not happen": {Contestants: []availability.AvailabilityResult{result("reset in place", 100_000)}},
	} {
		if err := report.Verdict(); err == nil || term.ExitCode(err) != term.ExitFailed {
			t.Errorf("%s: got %v; want a failure", name, err)
		}
	}
}

func TestAWorkerThatEndsByItselfIsNoVictim(t *testing.T) {
	w := &availability.LockstepWorker{Cmd: exec.Command("sh", "-c", "echo out of order; exit 3")}
	w.Cmd.Stdout = &w.Said
	_ = w.Cmd.Run()
	if err := w.Kill(); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("got %v; want what it said", err)
	}
	w = &availability.LockstepWorker{Cmd: exec.Command("sleep", "60")}
	proctest.Must(0, w.Cmd.Start())(t)
	if err := w.Kill(); err != nil {
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
		if err := runBench(t, nil, io.Discard, append([]string{"availability"}, args...)...); term.ExitCode(err) != term.ExitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
