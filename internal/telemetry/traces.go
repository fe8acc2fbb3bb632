package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

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

// flushTime is how long a process that ends tries to send the spans that it still has.
const flushTime = 2 * time.Second

// TracesConfig says what OpenTraces works with, beside the OTEL_* variables of the process.
type TracesConfig struct {
	Version string       // of this program
	Console io.Writer    // for OTEL_TRACES_EXPORTER=console; default os.Stderr
	Log     *slog.Logger // told when spans cannot be sent, once, and once when they can again; default slog.Default
}

// Traces sends spans to where the OTEL_* variables say. A nil *Traces makes none, and its methods may be called.
type Traces struct {
	provider *sdktrace.TracerProvider
	exporter *exporter
}

// OpenTraces makes what sends spans, or returns nil when the OTEL_* variables ask for none: then nothing is
// made, dialled or measured. They do when OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, or
// OTEL_TRACES_EXPORTER is otlp or console. What they say amiss is logged, by the name of the variable, and is no error:
// they are often set for a whole cluster, and a service works without its traces. The caller closes them.
//
// Sampler, limits, batches, headers, certificates, compression and resource are as the variables say: the SDK and its
// exporters read them.
func OpenTraces(ctx context.Context, cfg TracesConfig) *Traces {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Console == nil {
		cfg.Console = os.Stderr
	}
	kind := exporterKind()
	if kind == "" {
		return nil
	}
	complaints := &complaints{log: cfg.Log}
	otel.SetErrorHandler(complaints)
	otel.SetLogger(complaints.logger())
	sending, err := newExporter(ctx, kind, cfg.Console)
	if err != nil {
		cfg.Log.WarnContext(ctx, "no traces are sent", "error", harmless(err))
		return nil
	}
	exporter := newReportingExporter(sending, cfg.Log)
	who, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("lockstep"), semconv.ServiceVersion(cfg.Version), semconv.ServiceInstanceID(uuid.NewString())),
		resource.WithHost(), resource.WithProcessPID(), resource.WithTelemetrySDK(), resource.WithFromEnv(),
	)
	if err != nil { // some of it is known all the same
		complaints.Handle(fmt.Errorf("resource: %w", err))
	}
	return &Traces{
		exporter: exporter,
		provider: sdktrace.NewTracerProvider(sdktrace.WithResource(who), sdktrace.WithBatcher(exporter)),
	}
}

// Tracer makes the spans of one part of the program, by its name; nil when there are no traces.
func (t *Traces) Tracer(part string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("lockstep/" + part)
}

// Close sends what it still has, and gives up after two seconds: a collector that is away delays nobody's end.
func (t *Traces) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the exporter has said what there is to say
	t.exporter.abort()
}

// Begin begins a span of a one-shot command, below the one that the variable TRACEPARENT names, if there is one: a
// pipeline that is traced sets it. end ends it with the command's error.
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
			span.SetStatus(codes.Error, harmless(err))
		}
		span.End()
	}
}

// exporterKind is which exporter the variables ask for; empty for none.
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

// newExporter dials nobody yet.
func newExporter(ctx context.Context, kind string, console io.Writer) (sdktrace.SpanExporter, error) {
	switch kind {
	case "otlp":
	case "console":
		return stdouttrace.New(stdouttrace.WithWriter(console))
	default:
		return nil, errors.New("OTEL_TRACES_EXPORTER: want otlp, console or none")
	}
	switch protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf"); protocol {
	case "http/protobuf", "http/json":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	}
	return nil, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL: want http/protobuf, http/json or grpc")
}
