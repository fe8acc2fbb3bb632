package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"lockstep/internal/gittest"
)

// gitMachine is what the figures depend on.
type gitMachine struct {
	Git      string `json:"git"`
	Redis    string `json:"redis,omitempty"` // where one takes part
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cores    int    `json:"cores"`
}

func newGitMachine(ctx context.Context) (gitMachine, error) {
	version, err := gittest.Git(ctx, "/", "", "version")
	if err != nil {
		return gitMachine{}, usageError(fmt.Errorf("git is needed: %w", err))
	}
	return gitMachine{
		Git: strings.TrimPrefix(version, "git version "), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(),
	}, nil
}

func (m gitMachine) String() string {
	return fmt.Sprintf("git %s, %s %s, %d cores", m.Git, m.Go, m.Platform, m.Cores)
}

// cloneWithGit clones the last commit alone. Housekeeping is off: it would go on in the background.
func cloneWithGit(ctx context.Context, url, dir string, args ...string) error {
	_, err := gittest.Git(ctx, "/", "", append([]string{"clone", "--quiet", "--depth", "1", "-c", "gc.auto=0", url, dir}, args...)...)
	return err
}
