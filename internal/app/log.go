package app

import (
	"context"
	"io"
	"log/slog"

	"lockstep/internal/config"
	"lockstep/internal/telemetry"
)

// NewLogger returns a logger at the configured level, which defaults to defaultLevel.
func NewLogger(w io.Writer, cfg config.Config, defaultLevel slog.Level) *slog.Logger {
	level := defaultLevel
	if cfg.LogLevel != "" {
		_ = level.UnmarshalText([]byte(cfg.LogLevel)) // checked by config.Load
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(telemetry.LogHandler(slog.NewJSONHandler(w, opts)))
	}
	return slog.New(telemetry.LogHandler(slog.NewTextHandler(w, opts)))
}

// OpenTraces starts the span exporter, or returns nil if the OTEL_* variables do not configure one.
func OpenTraces(ctx context.Context, log *slog.Logger) *telemetry.Traces {
	return telemetry.OpenTraces(ctx, telemetry.TracesConfig{Version: ReadBuild().Version, Log: log})
}
