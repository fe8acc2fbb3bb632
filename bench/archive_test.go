package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"lockstep/bench/archive"
	"lockstep/internal/cli/term"
	"lockstep/internal/testenv"
)

func TestBenchArchiveReports(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	if _, err := exec.LookPath("zstd"); err != nil {
		t.Skip("zstd is not installed")
	}
	stdout, stderr, _ := runProcess(t, "archive", "--percent", "1", "--rounds", "2", "--source", testenv.Must(filepath.Abs("archive"))(t), "--shapes", "text,source,links,deep", "--json")
	var report archive.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	if len(report.Shapes) != 4 || report.Zstd == "" {
		t.Errorf("%+v", report)
	}
	for _, s := range report.Shapes {
		one, other, git := s.Lockstep[0], s.Lockstep[1], s.Git[0]
		if s.Files < 1 || one.Digest != other.Digest || one.Digest == "" || one.Bytes < 100 || git.Bytes < 100 || one.Wall <= 0 || one.CPU <= 0 || git.Wall <= 0 || git.CPU <= 0 ||
			s.Memory < 1<<20 || s.Throughput <= 0 || s.CPU <= 0 {
			t.Errorf("%+v", s)
		}
	}
	if _, stderr, code := runProcess(t, "archive", "--shapes", "none"); code != term.ExitUsage {
		t.Errorf("no such shape: exit code %d: %s", code, stderr)
	}
}
