package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/telemetry"
)

// traced puts a one-shot subcommand under a span of its own, if there are any. end is to be called with what became of it.
func traced(cmd *cobra.Command, std streams) (traces *telemetry.Traces, end func(error)) {
	traces = openTraces(cmd.Context(), newLogger(std.stderr, config.Config{}, slog.LevelWarn))
	ctx, done := traces.Begin(cmd.Context(), cmd.CommandPath())
	cmd.SetContext(ctx)
	return traces, func(err error) {
		done(err)
		traces.Close()
	}
}
