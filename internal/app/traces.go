package app

import (
	"context"
	"log/slog"

	"lockstep/internal/telemetry"
)

// OpenTraces starts the span exporter, or returns nil if the OTEL_* variables do not configure one.
func OpenTraces(ctx context.Context, log *slog.Logger) *telemetry.Traces {
	return telemetry.OpenTraces(ctx, telemetry.TracesConfig{Version: ReadBuild().Version, Log: log})
}
