package main

import (
	"context"
	"log/slog"

	"lockstep/internal/telemetry"
)

// openTraces makes what sends spans, nil unless the OTEL_* variables ask for it.
func openTraces(ctx context.Context, log *slog.Logger) *telemetry.Traces {
	return telemetry.OpenTraces(ctx, telemetry.TracesConfig{Version: readBuild().Version, Log: log})
}
