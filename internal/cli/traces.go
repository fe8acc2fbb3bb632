package cli

import (
	"log/slog"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/telemetry"
)

// traced puts a one-shot subcommand under a span of its own, if there are any. end is to be called with what became of it.
func traced(cmd *cobra.Command, std term.Streams) (traces *telemetry.Traces, end func(error)) {
	traces = app.OpenTraces(cmd.Context(), app.NewLogger(std.Stderr, config.Config{}, slog.LevelWarn))
	ctx, done := traces.Begin(cmd.Context(), cmd.CommandPath())
	cmd.SetContext(ctx)
	return traces, func(err error) {
		done(err)
		traces.Close()
	}
}
