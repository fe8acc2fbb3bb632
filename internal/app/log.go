package app

import (
	"io"
	"log/slog"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"lockstep/internal/config"
	"lockstep/internal/telemetry"
)

// SilenceRedis keeps go-redis from logging what it returns as errors too.
func SilenceRedis() { redis.SetLogger(&logging.VoidLogger{}) }

// NewLogger logs from the level that is set, or else from the subcommand's usual one.
func NewLogger(w io.Writer, cfg config.Config, usual slog.Level) *slog.Logger {
	level := usual
	if cfg.LogLevel != "" {
		_ = level.UnmarshalText([]byte(cfg.LogLevel)) // checked by config.Load
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(telemetry.LogHandler(slog.NewJSONHandler(w, opts)))
	}
	return slog.New(telemetry.LogHandler(slog.NewTextHandler(w, opts)))
}
