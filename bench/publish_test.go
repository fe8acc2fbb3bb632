package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
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
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	git := proctest.StartGit(t)
	proctest.Must(git.Generate(t.Context(), "acme/widgets", gitserver.Shape{Files: 40, Folders: 7, Bytes: 40_000}))(t)
	other, dir := proctest.Must(exec.LookPath("lockstep"))(t), t.TempDir()
	stdout, stderr, code := runProcess(t, "publish", "--sizes", "90", "--repo", git.Dir("acme/widgets"), "--pushes", "3",
		"--rounds", "2", "--dir", dir, "--writer", "--binary", "other="+other, "--idle", "100ms", "--json")
	if code != term.ExitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report publish.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if len(report.Repos) != 2 || report.Repos[0].Files != 90 || report.Repos[1].Name != "widgets" || report.Repos[1].Files != 40 || report.Repos[1].Folders != 7 {
		t.Fatalf("repositories %+v; want one of 90 files, and widgets of 40 in 7 folders", report.Repos)
	}
	for _, repo := range report.Repos {
		all := []string{publish.SideLockstep, "other", publish.SideReset, publish.SideWorktree}
		for _, name := range all {
			if turns := repo.Pushes[name]; len(turns) != 3 {
				t.Errorf("%s, %s: %+v; want 3 pushes", repo.Name, name, turns)
			}
			for _, p := range repo.Pushes[name] {
				if p.Seen <= 0 || p.CPU <= 0 {
					t.Errorf("%s, %s: %+v; want the time and the CPU time of a push", repo.Name, name, p)
				}
			}
		}
		if len(repo.Fsyncs) != 3 || len(repo.Clones["other"]) != 2 || len(repo.Clones[publish.SideClone]) != 2 {
			t.Errorf("%s: %+v; want three times of fsyncs, and two first clones by each", repo.Name, repo)
		}
		for _, name := range all[:2] {
			if r := repo.Ratios[name]; r.ToReset <= 0 || r.ToReset < r.ToResetMinusFsyncs || r.ToWorktree <= 0 || r.ToLockstep <= 0 || r.CloneToClone <= 0 {
				t.Errorf("%s, %s: ratios %+v", repo.Name, name, r)
			}
		}
	}
	if left := proctest.Must(os.ReadDir(dir))(t); len(left) > 0 {
		t.Errorf("left in --dir: %v", left)
	}
	var table bytes.Buffer
	if err := report.Table(&table); err != nil || !strings.Contains(table.String(), "widgets: 40 files in 7 folders") ||
		!strings.Contains(table.String(), publish.SideWorktree) || !strings.Contains(table.String(), "beside a writer") {
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
		"an unknown peer":  {"--peers", "rebase"},
		"a nameless file":  {"--binary", "bin/lockstep"},
		"a negative count": {"--pushes", "-1"},
	} {
		if err := runBench(t, nil, io.Discard, append([]string{"publish"}, args...)...); term.ExitCode(err) != term.ExitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
