// Package start measures how long a service takes to be ready.
package start

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
)

// bench holds the flags.
type bench struct {
	repos, starts int
}

// NewCommand returns the command bench start.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.RedisCommand(std, &cobra.Command{
		Use:   "start",
		Short: "Measure how long a service takes to be ready",
		Long: "Watch many small repositories and let one worker sync them, as bench idle does; then start a service\n" +
			"with all roles on that Redis and that volume several times, and measure the time until it is ready.\n" +
			"Without --redis it starts a private redis-server.",
		Example: "  go run ./bench start\n  go run ./bench start --repos 10000 --starts 10 -o json",
	}, b.check, b.run)
	cmd.Flags().IntVar(&b.repos, "repos", 1000, "number of repositories")
	cmd.Flags().IntVar(&b.starts, "starts", 10, "number of starts to measure")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.repos < 1 || b.starts < 1 {
		return errors.New("want at least one repository, and one start")
	}
	return nil
}

// Report holds the durations of the starts.
type Report struct {
	Machine rig.Machine     `json:"machine"`
	Repos   int             `json:"repos"`
	Took    []time.Duration `json:"took_ns"` // from the start of the process until it is ready
	P50     time.Duration   `json:"p50_ns"`
	Max     time.Duration   `json:"max_ns"`
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s; %d watched repositories, all on the volume\nready after %s ms (median of %d starts), %s ms at most\n",
		r.Machine, r.Repos, rig.Millis(r.P50), len(r.Took), rig.Millis(r.Max))
	return err
}

func (b *bench) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	env.Progress("syncing %d repositories", b.repos)
	deployment := rig.Deployment{Env: env, Redis: server, Root: filepath.Join(env.Dir, "root")}
	if _, _, err := deployment.SyncFleet(ctx, b.repos); err != nil {
		return nil, err
	}
	report := Report{Machine: server.Machine(), Repos: b.repos}
	for i := range b.starts {
		env.Progress("start %d of %d", i+1, b.starts)
		took, err := measure(ctx, deployment)
		if err != nil {
			return nil, err
		}
		report.Took = append(report.Took, took)
	}
	report.P50, report.Max = stats.Median(report.Took), slices.Max(report.Took)
	return report, nil
}

// measure starts a service, and stops it when it is ready.
func measure(ctx context.Context, deployment rig.Deployment) (time.Duration, error) {
	address, err := rig.FreeAddress()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	service, err := deployment.Start(ctx, "serve", "--listen", address)
	if err != nil {
		return 0, err
	}
	err = awaitReady(ctx, "http://"+address+"/readyz", time.Minute)
	took := time.Since(began)
	return took, errors.Join(err, service.Stop())
}

// awaitReady returns once the URL answers 200.
func awaitReady(ctx context.Context, url string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if _, err := rig.Get(ctx, url); err == nil {
			return nil
		}
		if !app.Sleep(ctx, 2*time.Millisecond) {
			return fmt.Errorf("service is not ready: %w", context.Cause(ctx))
		}
	}
}
