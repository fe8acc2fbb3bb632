package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programVariable names the lockstep binary to measure instead of one that is built.
const programVariable = "BENCH_LOCKSTEP"

// lockstepProgram returns the path of the lockstep binary to measure: the one that BENCH_LOCKSTEP names, or one that it
// builds in dir from ./cmd/lockstep.
func lockstepProgram(ctx context.Context, std streams, dir string) (string, error) {
	if path := std.variable(programVariable); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(dir, "lockstep")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "lockstep/cmd/lockstep")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build ./cmd/lockstep (run from the repository, or name a binary in %s): %w: %s", programVariable, err, strings.TrimSpace(string(out)))
	}
	return path, nil
}
