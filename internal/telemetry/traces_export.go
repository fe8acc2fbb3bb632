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

// exporter passes spans on, and says once that they cannot be sent and once that they can again. Spans that
// cannot be sent are lost: they are worth no memory, and nobody's wait.
type exporter struct {
	next  sdktrace.SpanExporter
	log   *slog.Logger
	abort context.CancelFunc // what is being sent, and what is to be sent from then on
	ended context.Context    // done once aborted

	away atomic.Bool
	lost atomic.Int64 // spans, since it is away
}

func newReportingExporter(next sdktrace.SpanExporter, log *slog.Logger) *exporter {
	e := &exporter{next: next, log: log}
	e.ended, e.abort = context.WithCancel(context.Background())
	return e
}

// ExportSpans never fails: whoever calls it could but log the error, each time.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ended, cancel)()
	err := e.next.ExportSpans(ctx, spans)
	switch {
	case err != nil:
		e.lost.Add(int64(len(spans)))
		if !e.away.Swap(true) {
			e.log.WarnContext(ctx, "traces cannot be sent; spans are lost until they can", "error", harmless(err))
		}
	case e.away.Swap(false):
		e.log.InfoContext(ctx, "traces are sent again", "lost", e.lost.Swap(0))
	}
	return nil
}

// Shutdown ends the exporter for good.
func (e *exporter) Shutdown(ctx context.Context) error {
	defer e.abort()
	return e.next.Shutdown(ctx)
}

var addresses = regexp.MustCompile(`[a-z]+://\S+`)

// harmless is an error's text on one line of bounded length, without any URL, in which there may be a password.
func harmless(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	text := addresses.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "(a URL)")
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

// complaintPause is the time between two complaints of the SDK that are logged.
const complaintPause = time.Minute

// complaints logs what the SDK has to say outside of all calls, one thing a minute.
type complaints struct {
	log *slog.Logger

	mu     sync.Mutex
	last   time.Time
	passed int // over, since then
}

// Handle is what the SDK calls with errors; see [otel.ErrorHandler].
func (c *complaints) Handle(err error) { c.say(harmless(err)) }

func (c *complaints) say(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.IsZero() && time.Since(c.last) < complaintPause {
		c.passed++
		return
	}
	c.log.Warn("traces: the SDK complains", "about", what, "passed_over", c.passed)
	c.last, c.passed = time.Now(), 0
}

// logger is what the SDK logs with.
func (c *complaints) logger() logr.Logger { return logr.New(sink{c}) }

// sink leaves out errors and values: what they repeat of a variable may be a header with a token.
type sink struct{ *complaints }

// The SDK's levels: a warning is 1, information is 4, debugging is 8.
const sdkWarning = 1

func (s sink) Init(logr.RuntimeInfo)            {}
func (s sink) Enabled(level int) bool           { return level <= sdkWarning }
func (s sink) Info(_ int, msg string, _ ...any) { s.say(msg) }
func (s sink) Error(_ error, msg string, _ ...any) {
	s.say("cannot use what an OTEL_* variable says: " + msg)
}
func (s sink) WithValues(...any) logr.LogSink { return s }
func (s sink) WithName(string) logr.LogSink   { return s }
