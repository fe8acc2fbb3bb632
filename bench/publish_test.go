package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"lockstep/bench/publish"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

func TestBenchPublishComparesPushesAndFirstClones(t *testing.T) {
	testenv.Long(t) // it syncs the file system, which can take long
	skipUnderRace(t)
	git := proctest.StartGit(t)
	proctest.Must(git.Generate(t.Context(), "acme/widgets", gitserver.Shape{Files: 40, Bytes: 40_000}))(t)
	stdout, stderr, code := runProcess(t, "publish", "--sizes", "90", "--repo", git.Dir("acme/widgets"), "--pushes", "3",
		"--rounds", "2", "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report publish.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if len(report.Repos) != 2 || report.Repos[0].Files != 90 || report.Repos[1].Name != "widgets" || report.Repos[1].Files != 40 {
		t.Fatalf("repositories %+v; want one of 90 files, and widgets of 40", report.Repos)
	}
	for _, repo := range report.Repos {
		for name, n := range map[string]int{publish.SideLinked: 0, publish.SideReused: 3, publish.SideReset: 0, publish.SideWorktree: 0} {
			if turns := repo.Pushes[name]; len(turns) != 3 || repo.Pushes.Reused(name) != n {
				t.Errorf("%s, %s: %+v; want 3 pushes, and %d recycled trees", repo.Name, name, turns, n)
			}
			for _, p := range repo.Pushes[name] {
				if p.Seen <= 0 || (name == publish.SideReset) != (p.Synced > p.Seen) {
					t.Errorf("%s, %s: %+v; want a push seen, and then on disk where it is not before", repo.Name, name, p)
				}
			}
		}
		for _, name := range []string{publish.SideLinked, publish.SideReused} {
			for _, p := range repo.Pushes[name] {
				sum := -p.Phases[publish.PhaseAfter] - p.Seen
				for _, phase := range publish.Phases() {
					if p.Phases[phase] <= 0 {
						t.Errorf("%s, %s: phase %q took %v", repo.Name, name, phase, p.Phases[phase])
					}
					sum += p.Phases[phase]
				}
				if sum != 0 {
					t.Errorf("%s, %s: the phases of %+v do not add up to when it was seen", repo.Name, name, p)
				}
			}
		}
		if len(repo.Clones[publish.SideLinked]) != 2 || len(repo.Clones[publish.SideClone]) != 2 || repo.CloneToClone <= 0 ||
			repo.LinkedToReset <= 0 || repo.LinkedToWorktree <= 0 || repo.ReusedToReset <= 0 {
			t.Errorf("%s: %+v; want two first clones by each, and ratios", repo.Name, repo)
		}
	}
	var table bytes.Buffer
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "widgets: 40 files") || !strings.Contains(table.String(), publish.SideWorktree) {
		t.Errorf("%v\n%s", err, table.String())
	}
}

func TestBenchPublishUsageErrors(t *testing.T) {
	for name, args := range map[string][]string{
		"no pushes":        {"--pushes", "0"},
		"no rounds":        {"--rounds", "0"},
		"no sizes":         {"--sizes", ""},
		"an unknown size":  {"--sizes", "linux"},
		"one file":         {"--sizes", "60,1"},
		"an argument":      {"now"},
		"a negative count": {"--pushes", "-1"},
	} {
		if err := runBench(t, nil, io.Discard, append([]string{"publish"}, args...)...); term.ExitCode(err) != term.ExitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
