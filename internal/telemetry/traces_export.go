package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exporter forwards spans, and logs once when sending starts to fail and once when it recovers. It drops spans that
// cannot be sent instead of buffering or retrying them.
type exporter struct {
	next    sdktrace.SpanExporter
	log     *slog.Logger
	abort   context.CancelFunc // cancels current and future exports
	aborted context.Context    // done after abort

	failing atomic.Bool
	lost    atomic.Int64 // spans dropped since sending started to fail
}

func newReportingExporter(next sdktrace.SpanExporter, log *slog.Logger) *exporter {
	e := &exporter{next: next, log: log}
	e.aborted, e.abort = context.WithCancel(context.Background())
	return e
}

// ExportSpans implements [sdktrace.SpanExporter]. It never returns an error, because the SDK would log each one.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.aborted, cancel)()
	err := e.next.ExportSpans(ctx, spans)
	switch {
	case err != nil:
		e.lost.Add(int64(len(spans)))
		if !e.failing.Swap(true) {
			e.log.WarnContext(ctx, "traces cannot be sent, dropping spans", "error", redact(err))
		}
	case e.failing.Swap(false):
		e.log.InfoContext(ctx, "traces can be sent again", "lost", e.lost.Swap(0))
	}
	return nil
}

// Shutdown implements [sdktrace.SpanExporter].
func (e *exporter) Shutdown(ctx context.Context) error {
	defer e.abort()
	return e.next.Shutdown(ctx)
}

var urlPattern = regexp.MustCompile(`[a-z]+://\S+`)

// redact returns an error's text as one line of limited length, without URLs, which may contain a password.
func redact(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	text := urlPattern.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "(a URL)")
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

const sdkLogInterval = time.Minute // minimum time between two logged messages of the SDK

// sdkLog logs the OpenTelemetry SDK's own errors and warnings, at most one per sdkLogInterval.
type sdkLog struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time
	skipped int // messages since last
}

// Handle implements [otel.ErrorHandler].
func (l *sdkLog) Handle(err error) { l.write(redact(err)) }

func (l *sdkLog) write(msg string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() && time.Since(l.last) < sdkLogInterval {
		l.skipped++
		return
	}
	l.log.Warn("OpenTelemetry SDK warning", "about", msg, "passed_over", l.skipped)
	l.last, l.skipped = time.Now(), 0
}

func (l *sdkLog) logger() logr.Logger { return logr.New(sink{l}) }

// sink drops errors and values, because they may quote a header with a token.
type sink struct{ *sdkLog }

const sdkWarning = 1 // SDK's log level for warnings; 4 is information, 8 is debugging

func (s sink) Init(logr.RuntimeInfo)            {}
func (s sink) Enabled(level int) bool           { return level <= sdkWarning }
func (s sink) Info(_ int, msg string, _ ...any) { s.write(msg) }
func (s sink) Error(_ error, msg string, _ ...any) {
	s.write("invalid OTEL_* variable: " + msg)
}
func (s sink) WithValues(...any) logr.LogSink { return s }
func (s sink) WithName(string) logr.LogSink   { return s }
