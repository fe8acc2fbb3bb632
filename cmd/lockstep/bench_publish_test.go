package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/bench"
	"lockstep/internal/gitserver"
)

func TestBenchPublishComparesPushesAndFirstClones(t *testing.T) {
	longBench(t)
	git := startGit(t)
	must(git.Generate(t.Context(), "acme/widgets", gitserver.Shape{Files: 40, Bytes: 40_000}))(t)
	stdout, stderr, code := runLockstep(t, nil, "bench", "publish", "--sizes", "90", "--repo", git.Dir("acme/widgets"), "--pushes", "3",
		"--rounds", "2", "--json")
	if code != exitDone {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	var report publishReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if len(report.Repos) != 2 || report.Repos[0].Files != 90 || report.Repos[1].Name != "widgets" || report.Repos[1].Files != 40 {
		t.Fatalf("repositories %+v; want one of 90 files, and widgets of 40", report.Repos)
	}
	for _, repo := range report.Repos {
		for name, n := range map[string]int{sideLinked: 0, sideReused: 3, sideReset: 0, sideWorktree: 0} {
			if turns := repo.Pushes[name]; len(turns) != 3 || repo.Pushes.reused(name) != n {
				t.Errorf("%s, %s: %+v; want 3 pushes, and an older tree brought forward in %d", repo.Name, name, turns, n)
			}
			for _, p := range repo.Pushes[name] {
				if p.Seen <= 0 || (name == sideReset) != (p.Synced > p.Seen) {
					t.Errorf("%s, %s: %+v; want a push seen, and then on disk where it is not before", repo.Name, name, p)
				}
			}
		}
		for _, name := range []string{sideLinked, sideReused} {
			for _, p := range repo.Pushes[name] {
				sum := -p.Phases[bench.PhaseAfter] - p.Seen
				for _, phase := range bench.Phases() {
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
		if len(repo.Clones[sideLinked]) != 2 || len(repo.Clones[sideClone]) != 2 || repo.CloneToClone <= 0 ||
			repo.LinkedToReset <= 0 || repo.LinkedToWorktree <= 0 || repo.ReusedToReset <= 0 {
			t.Errorf("%s: %+v; want two first clones by each, and ratios", repo.Name, repo)
		}
	}
	var table bytes.Buffer
	if err := report.print(&table, output{}); err != nil || !strings.Contains(table.String(), "widgets: 40 files") || !strings.Contains(table.String(), sideWorktree) {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// brokenSide publishes nothing.
type brokenSide struct{ dir string }

func (s brokenSide) publish(context.Context) (bench.Publication, error) {
	return bench.Publication{}, nil
}
func (s brokenSide) tree() string               { return s.dir }
func (s brokenSide) tidy(context.Context) error { return nil }
func (s brokenSide) close()                     {}

func TestBenchPublishFailsWhereAPushIsNotPublished(t *testing.T) {
	dir := t.TempDir()
	run := publishRun{dir: dir}
	side := namedSide{"broken", brokenSide{dir}}
	if _, err := run.turn(t.Context(), side, "a", "new"); err == nil {
		t.Error("a file that is not there will do")
	}
	must(0, os.WriteFile(filepath.Join(dir, "a"), []byte("old"), 0o600))(t)
	if _, err := run.turn(t.Context(), side, "a", "new"); err == nil || !strings.Contains(err.Error(), "not as it was pushed") {
		t.Errorf("an old file: got %v", err)
	}
	if _, err := run.turn(t.Context(), side, "a", "old"); err != nil {
		t.Errorf("what was pushed: got %v", err)
	}
}

func TestBenchPublishComparesTheLargestWithTheSmallest(t *testing.T) {
	repo := func(files int, build time.Duration) publishedRepo {
		p := bench.Publication{Phases: map[string]time.Duration{bench.PhaseBuild: build, bench.PhaseIndex: time.Duration(files), bench.PhaseFlip: 1}}
		return publishedRepo{Files: files, Pushes: publishTurns{sideReused: {p}}}
	}
	report := publishReport{Repos: []publishedRepo{repo(500, 99), repo(60, 1), repo(50_000, 9)}}
	report.compare()
	if report.LargestToSmallestReused != 5 {
		t.Errorf("got %v, want 5", report.LargestToSmallestReused)
	}
}

func TestBenchPublishRefusesNonsense(t *testing.T) {
	for name, args := range map[string][]string{
		"no pushes":        {"--pushes", "0"},
		"no rounds":        {"--rounds", "0"},
		"no sizes":         {"--sizes", ""},
		"an unknown size":  {"--sizes", "linux"},
		"one file":         {"--sizes", "60,1"},
		"an argument":      {"now"},
		"a negative count": {"--pushes", "-1"},
	} {
		if err := runBench(t, nil, io.Discard, append([]string{"publish"}, args...)...); exitCode(err) != exitUsage {
			t.Errorf("%s: got %v; want a usage error", name, err)
		}
	}
}
