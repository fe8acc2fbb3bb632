package availability

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/telemetry"
)

// The steps at which a worker kills itself; see package volume. Those of prepared trees are reached less often, so every
// second worker dies at one of them.
var (
	preparedSteps = []string{"linked", "taken", "prepared"}
	syncSteps     = []string{"fenced", "bound", "listed", "fetched", "moved", "checked out", "indexed", "built", "confirmed", "flipped", "retired"}
)

// maxPass is the highest pass of a step of a sync at which a worker kills itself.
const maxPass = 3

const dyingCommand = "availability-worker"

// NewWorkerCommand returns the hidden command of a worker that kills itself with SIGKILL at a step.
func NewWorkerCommand(std term.Streams) *cobra.Command {
	var step string
	var pass int64
	cmd := &cobra.Command{
		Use: dyingCommand, Short: "A worker of bench availability that kills itself", Hidden: true, Args: term.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(cmd.Flags(), "", std.Environ)
			if err != nil {
				return err
			}
			server, err := cfg.RedisServer()
			if err != nil {
				return err
			}
			var left atomic.Int64
			left.Store(pass)
			return app.RunWorker(cmd.Context(), app.Config{
				Config: cfg, Redis: server, Log: app.NewLogger(std.Stderr, cfg, slog.LevelError), Metrics: telemetry.New(),
				Step: func(at string) {
					if at == step && left.Add(-1) == 0 {
						_ = unix.Kill(os.Getpid(), unix.SIGKILL)
						select {}
					}
				},
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Working|config.Serving)
	cmd.Flags().StringVar(&step, "step", "", "`step` at which the worker kills itself")
	cmd.Flags().Int64Var(&pass, "pass", 1, "`number` of the pass of the step")
	return cmd
}

// dieInTurn runs one worker after the other, each of which kills itself at another step. One that does not reach its step in time is
// killed.
func (s *workers) dieInTurn(during context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx := context.WithoutCancel(during) // killed at the end of the run
	for n := 0; during.Err() == nil; n++ {
		step, pass := preparedSteps[n/2%len(preparedSteps)], 1
		if n%2 == 1 {
			step, pass = syncSteps[n/2%len(syncSteps)], 1+rand.IntN(maxPass)
		}
		args := s.deployment.Args(dyingCommand, "--step", step, "--pass", strconv.Itoa(pass))
		p, err := s.deployment.StartBinary(ctx, self, args...)
		if err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(during, stepWithin)
		byItself := p.Ended(wait)
		cancel()
		if during.Err() != nil {
			return nil
		}
		if err := p.Kill(); err != nil {
			return err
		}
		s.mu.Lock()
		if s.killed++; byItself {
			s.killedAt[step]++
		}
		s.mu.Unlock()
	}
	return nil
}

// steps returns how many workers killed themselves at each step, as text.
func (r Result) steps() string {
	var text strings.Builder
	for _, step := range slices.Concat(preparedSteps, syncSteps) {
		fmt.Fprintf(&text, " %s %d,", step, r.KilledAt[step])
	}
	return strings.TrimSuffix(text.String(), ",")
}
