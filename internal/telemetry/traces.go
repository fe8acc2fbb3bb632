package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// flushTimeout limits how long [Traces.Close] tries to send the remaining spans.
const flushTimeout = 2 * time.Second

// TracesConfig configures OpenTraces, in addition to the OTEL_* environment variables.
type TracesConfig struct {
	Version string       // version of the program
	Console io.Writer    // writer for OTEL_TRACES_EXPORTER=console; defaults to os.Stderr
	Log     *slog.Logger // logs errors of the SDK, at most one per minute; defaults to slog.Default
}

// Traces exports spans as configured by the OTEL_* environment variables. All methods of a nil *Traces are no-ops.
type Traces struct {
	provider *sdktrace.TracerProvider
	flush    time.Duration // flushTimeout, shorter in tests
}

// OpenTraces returns Traces, or nil if tracing is not enabled. It is enabled by OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or by OTEL_TRACES_EXPORTER if that is otlp or console. Invalid variables are
// logged by name and are not errors: they are often set for a whole cluster, and the service works without traces. The
// caller must close the Traces.
//
// The SDK and its exporters read all other settings from the variables.
func OpenTraces(ctx context.Context, cfg TracesConfig) *Traces {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Console == nil {
		cfg.Console = os.Stderr
	}
	kind := exporterKind()
	if kind == "" {
		return nil
	}
	sdk := &sdkErrors{log: cfg.Log}
	otel.SetErrorHandler(sdk)
	otel.SetLogger(logr.Discard()) // its messages may quote a header with a token
	exporter, err := newExporter(ctx, kind, cfg.Console)
	if err != nil {
		cfg.Log.WarnContext(ctx, "tracing disabled", "error", redact(err))
		return nil
	}
	attributes, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("lockstep"), semconv.ServiceVersion(cfg.Version),
			semconv.ServiceInstanceID(uuid.NewString())),
		resource.WithHost(), resource.WithProcessPID(), resource.WithTelemetrySDK(), resource.WithFromEnv(),
	)
	if err != nil { // the resource is incomplete, but usable
		sdk.Handle(fmt.Errorf("resource: %w", err))
	}
	return &Traces{
		provider: sdktrace.NewTracerProvider(sdktrace.WithResource(attributes), sdktrace.WithBatcher(exporter)),
		flush:    flushTimeout,
	}
}

// Tracer returns the tracer of the named part of the program, or nil if tracing is disabled.
func (t *Traces) Tracer(part string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("lockstep/" + part)
}

// Close sends the remaining spans. It gives up after two seconds.
func (t *Traces) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.flush)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // spans that cannot be sent are dropped
}

// Begin starts the span of a one-shot command. Its parent is the span in the environment variable TRACEPARENT, if set,
// so that the command joins the trace of the pipeline that runs it. end records the command's error and ends the span.
func (t *Traces) Begin(ctx context.Context, name string) (_ context.Context, end func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
		"traceparent": os.Getenv("TRACEPARENT"), "tracestate": os.Getenv("TRACESTATE"),
	})
	ctx, span := t.Tracer("cli").Start(ctx, name)
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, redact(err))
		}
		span.End()
	}
}

// exporterKind returns the exporter selected by the environment, or "" if tracing is disabled.
func exporterKind() string {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return ""
	}
	switch kind := strings.ToLower(strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER"))); {
	case kind == "none":
		return ""
	case kind != "":
		return kind
	case os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "", os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "":
		return "otlp"
	}
	return ""
}

// newExporter returns an exporter that connects on first use.
func newExporter(ctx context.Context, kind string, console io.Writer) (sdktrace.SpanExporter, error) {
	switch kind {
	case "otlp":
	case "console":
		return stdouttrace.New(stdouttrace.WithWriter(console))
	default:
		return nil, errors.New("OTEL_TRACES_EXPORTER: want otlp, console or none")
	}
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		"http/protobuf")
	switch protocol {
	case "http/protobuf", "http/json":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	}
	return nil, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL: want http/protobuf, http/json or grpc")
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

const sdkErrorInterval = time.Minute // minimum time between two logged errors of the SDK

// sdkErrors logs the OpenTelemetry SDK's errors, such as spans that cannot be sent, at most one per sdkErrorInterval.
type sdkErrors struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
}

// Handle implements [otel.ErrorHandler].
func (l *sdkErrors) Handle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.IsZero() || time.Since(l.last) >= sdkErrorInterval {
		l.last = time.Now()
		l.log.Warn("traces are lost or incomplete", "error", redact(err))
	}
}

// LogHandler returns a handler that adds trace_id and span_id to records logged with the context of a span, sampled or
// not, so that the lines of a trace can be found in the logs of all processes.
func LogHandler(next slog.Handler) slog.Handler { return logHandler{next} }

type logHandler struct{ slog.Handler }

func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.Handler.WithGroup(name)}
}
