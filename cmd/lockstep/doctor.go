package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
)

// The verdicts of a check.
const (
	verdictOK   = "ok"
	verdictWarn = "warn" // it works, but see to it
	verdictFail = "fail" // it will not work
)

// check is one thing that was looked at.
type check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Text    string `json:"text"` // what was found, and what to do
}

func passed(name, format string, args ...any) check {
	return check{name, verdictOK, fmt.Sprintf(format, args...)}
}

func warned(name, format string, args ...any) check {
	return check{name, verdictWarn, fmt.Sprintf(format, args...)}
}

func refused(name, format string, args ...any) check {
	return check{name, verdictFail, oneLine(fmt.Errorf(format, args...))}
}

// doctorTimeout bounds each part of the examination: a file system that hangs is a finding.
const doctorTimeout = 20 * time.Second

func newDoctorCommand(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check that Redis, the volume and this machine are fit for a worker",
		Long: "Check what a worker with the same settings would depend on, and say what to do about it: Redis' version,\n" +
			"persistence, memory and clock; what the volume's file system can do, and its free space; the limit on open\n" +
			"files. Nothing of a running service is changed. Exit code 1 when something will not work.",
		Example: "  lockstep doctor --redis redis://127.0.0.1:6379 --root /srv/repos\n" +
			"  lockstep doctor --json",
		Args: wrongUse(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			checks := examine(cmd.Context(), cfg)
			if err := printChecks(std.stdout, checks, asJSON); err != nil {
				return err
			}
			failed := 0
			for _, c := range checks {
				if c.Verdict == verdictFail {
					failed++
				}
			}
			if failed > 0 {
				return fmt.Errorf("%d of %d checks failed", failed, len(checks))
			}
			return nil
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Working)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// examine makes all checks. A part that does not end in time is given up, and its goroutine with it.
func examine(ctx context.Context, cfg config.Config) []check {
	parts := []struct {
		name string
		run  func(context.Context) []check
	}{
		{"redis", func(ctx context.Context) []check { return examineRedis(ctx, cfg) }},
		{"volume", func(context.Context) []check { return examineVolume(cfg) }},
		{"open files", func(context.Context) []check { return []check{openFiles(cfg)} }},
	}
	var all []check
	for _, part := range parts {
		ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
		done := make(chan []check, 1)
		go func() { done <- part.run(ctx) }()
		select {
		case checks := <-done:
			all = append(all, checks...)
		case <-ctx.Done():
			all = append(all, refused(part.name, "no answer within %v; is it a network file system whose server is away?", doctorTimeout))
		}
		cancel()
	}
	return all
}

func printChecks(w io.Writer, checks []check, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(checks)
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", c.Verdict, c.Name, c.Text)
	}
	return tw.Flush()
}
