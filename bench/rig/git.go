package rig

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
)

// GitMachine is what the figures depend on.
type GitMachine struct {
	Git      string `json:"git"`
	Redis    string `json:"redis,omitempty"` // where one takes part
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cores    int    `json:"cores"`
}

func NewGitMachine(ctx context.Context) (GitMachine, error) {
	version, err := gitserver.Git(ctx, "/", "", "version")
	if err != nil {
		return GitMachine{}, term.UsageError(fmt.Errorf("git is needed: %w", err))
	}
	return GitMachine{
		Git: strings.TrimPrefix(version, "git version "), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(),
	}, nil
}

func (m GitMachine) String() string {
	return fmt.Sprintf("git %s, %s %s, %d cores", m.Git, m.Go, m.Platform, m.Cores)
}

// CloneWithGit clones the last commit alone. Housekeeping is off: it would go on in the background.
func CloneWithGit(ctx context.Context, url, dir string, args ...string) error {
	_, err := gitserver.Git(ctx, "/", "", append([]string{"clone", "--quiet", "--depth", "1", "-c", "gc.auto=0", url, dir}, args...)...)
	return err
}
