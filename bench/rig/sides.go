package rig

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/internal/term"
)

// Names of sides.
const (
	SideLockstep = "lockstep" // this tree, or the binary that BENCH_LOCKSTEP names
	SideAgainst  = "against"  // the binary of --against
)

// Side is a lockstep binary that takes part in a benchmark.
type Side struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Version string `json:"version"`
}

// AgainstFlag adds --against to a command.
func AgainstFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "against", "", "`path` of another lockstep binary that does the same work, in turns; the report has the ratios")
}

// Sides returns this tree's binary and, unless it is "", the one of --against. The report prints their versions.
func (e *Env) Sides(ctx context.Context, against string) ([]Side, error) {
	own, err := e.Lockstep(ctx)
	if err != nil {
		return nil, err
	}
	sides := []Side{{Name: SideLockstep, Path: own}}
	if against != "" {
		path, err := filepath.Abs(against)
		if err != nil {
			return nil, err
		}
		sides = append(sides, Side{Name: SideAgainst, Path: path})
	}
	for i, side := range sides {
		version, err := exec.CommandContext(ctx, side.Path, "version").Output()
		if err != nil {
			return nil, term.UsageError(fmt.Errorf("%s is no lockstep binary: %w", side.Path, err))
		}
		sides[i].Version = strings.TrimPrefix(strings.TrimSpace(string(version)), "lockstep ")
	}
	e.conditions.Sides = sides
	return sides, nil
}
