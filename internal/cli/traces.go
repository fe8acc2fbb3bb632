package cli

import (
	"log/slog"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/telemetry"
	"lockstep/internal/term"
)

// traced runs a one-shot subcommand in a span if tracing is on. Call end with the command's error.
func traced(cmd *cobra.Command, std term.Streams) (traces *telemetry.Traces, end func(error)) {
	traces = app.OpenTraces(cmd.Context(), app.NewLogger(std.Stderr, config.Config{}, slog.LevelWarn))
	ctx, done := traces.Begin(cmd.Context(), cmd.CommandPath())
	cmd.SetContext(ctx)
	return traces, func(err error) {
		done(err)
		traces.Close()
	}
}
