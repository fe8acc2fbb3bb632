package app

import (
	"context"
	"log/slog"

	"lockstep/internal/telemetry"
)

// OpenTraces makes what sends spans, nil unless the OTEL_* variables ask for it.
func OpenTraces(ctx context.Context, log *slog.Logger) *telemetry.Traces {
	return telemetry.OpenTraces(ctx, telemetry.TracesConfig{Version: ReadBuild().Version, Log: log})
}
