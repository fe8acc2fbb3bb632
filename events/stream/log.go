package stream

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
)

// slogOf returns a logger that writes to a Watermill logger, which knows no warnings: they are logged as errors.
func slogOf(to watermill.LoggerAdapter) *slog.Logger {
	if to == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(adapterHandler{to})
}

// adapterHandler is a [slog.Handler] for a Watermill logger. It does not support groups.
type adapterHandler struct{ to watermill.LoggerAdapter }

func (adapterHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h adapterHandler) Handle(_ context.Context, r slog.Record) error {
	fields := make(watermill.LogFields, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		fields[a.Key] = a.Value.Any()
		return true
	})
	switch {
	case r.Level >= slog.LevelWarn:
		err, ok := fields["error"].(error)
		if ok {
			delete(fields, "error")
		} else {
			err = errors.New(r.Message)
		}
		h.to.Error(r.Message, err, fields)
	case r.Level >= slog.LevelInfo:
		h.to.Info(r.Message, fields)
	default:
		h.to.Debug(r.Message, fields)
	}
	return nil
}

func (h adapterHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := make(watermill.LogFields, len(attrs))
	for _, a := range attrs {
		fields[a.Key] = a.Value.Any()
	}
	return adapterHandler{h.to.With(fields)}
}

func (h adapterHandler) WithGroup(string) slog.Handler { return h }
