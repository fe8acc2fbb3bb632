package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"lockstep/internal/cli/term"
)

// programVariable names the lockstep binary to measure instead of one that is built.
const programVariable = "BENCH_LOCKSTEP"

// Program returns the path of the lockstep binary to measure: the one that BENCH_LOCKSTEP names, or one that it
// builds in dir from ./cmd/lockstep.
func Program(ctx context.Context, std term.Streams, dir string) (string, error) {
	if path := std.Variable(programVariable); path != "" {
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
