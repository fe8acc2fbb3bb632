package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"lockstep/internal/logtest"
)

// clearOTel replaces the OpenTelemetry variables of the environment by those in env.
func clearOTel(t *testing.T, env map[string]string) {
	t.Helper()
	for _, name := range []string{"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
		"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_HEADERS",
		"TRACEPARENT", "TRACESTATE"} {
		t.Setenv(name, env[name])
	}
}

func logger(to *logtest.Buffer) *slog.Logger {
	return slog.New(LogHandler(slog.NewTextHandler(to, nil)))
}

func TestTracingIsEnabledByEnvironment(t *testing.T) {
	const endpoint = "http://127.0.0.1:1"
	for name, tc := range map[string]struct {
		env map[string]string
		on  bool
		log string // expected log text
	}{
		"nothing":          {},
		"an endpoint":      {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}, on: true},
		"traces endpoint":  {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint + "/v1/traces"}, on: true},
		"otlp by name":     {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, on: true},
		"grpc":             {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, on: true},
		"the console":      {env: map[string]string{"OTEL_TRACES_EXPORTER": "console"}, on: true},
		"none":             {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_TRACES_EXPORTER": "none"}},
		"disabled":         {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_SDK_DISABLED": "true"}},
		"another exporter": {env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, log: "OTEL_TRACES_EXPORTER: want otlp, console or none"},
		"unknown protocol": {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, log: "OTEL_EXPORTER_OTLP_PROTOCOL: want"},
	} {
		t.Run(name, func(t *testing.T) {
			clearOTel(t, tc.env)
			var log logtest.Buffer
			traces := OpenTraces(t.Context(), TracesConfig{Log: logger(&log), Console: &logtest.Buffer{}})
			defer traces.Close()
			if on := traces.Tracer("test") != nil; on != tc.on || !strings.Contains(log.String(), tc.log) || tc.log == "" && log.String() != "" {
				t.Errorf("tracing enabled: %v, want %v; log: %s", on, tc.on, log.String())
			}
		})
	}
}

func TestCommandSpanHasPipelineParent(t *testing.T) {
	clearOTel(t, map[string]string{"OTEL_TRACES_EXPORTER": "console", "TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
	var console logtest.Buffer
	traces := OpenTraces(t.Context(), TracesConfig{Console: &console, Version: "v9"})
	ctx, end := traces.Begin(t.Context(), "lockstep sync")
	if got := trace.SpanContextFromContext(ctx).TraceID().String(); got != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("trace %s", got)
	}
	end(errors.New("it failed"))
	traces.Close()
	for _, want := range []string{`"Name":"lockstep sync"`, "b7ad6b7169203331", "it failed", `"v9"`, `"lockstep"`} {
		if !strings.Contains(console.String(), want) {
			t.Errorf("no %s in %s", want, console.String())
		}
	}
}

// grpcCollector receives spans by OTLP over gRPC.
type grpcCollector struct {
	collectorpb.UnimplementedTraceServiceServer
	names chan string
}

func (c grpcCollector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	for _, span := range r.ResourceSpans[0].ScopeSpans[0].Spans {
		c.names <- span.Name
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func TestSpansAreSentOverGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, collector := grpc.NewServer(), grpcCollector{names: make(chan string, 10)}
	collectorpb.RegisterTraceServiceServer(server, collector)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	clearOTel(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + listener.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
	traces := OpenTraces(t.Context(), TracesConfig{})
	traces.flush = time.Minute
	_, span := traces.Tracer("test").Start(t.Context(), "work")
	span.End()
	traces.Close() // sends the span
	select {
	case name := <-collector.names:
		if name != "work" {
			t.Errorf("span %s", name)
		}
	default:
		t.Error("nothing was sent")
	}
}

func TestUnreachableCollectorIsLoggedAndDoesNotBlockClose(t *testing.T) {
	answers, hangs := make(chan int, 1), make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // needed to detect that the client disconnects
		select {
		case status := <-answers:
			w.WriteHeader(status)
		case <-hangs:
		}
	}))
	defer collector.Close()
	defer close(hangs)
	clearOTel(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": strings.Replace(collector.URL, "http://", "http://user:hunter2@", 1),
		"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer hunter2,x-odd=%zz-hunter2,hunter2"})
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600000") // 10 min
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "600000")
	var log logtest.Buffer
	traces := OpenTraces(t.Context(), TracesConfig{Log: logger(&log)})
	traces.flush = 200 * time.Millisecond
	span := func() { _, s := traces.Tracer("test").Start(t.Context(), "work"); s.End() }
	answers <- http.StatusBadRequest
	span()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(log.String(), "400"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the failure is not logged: %s", log.String())
		}
	}
	span() // the collector hangs from here on
	start := time.Now()
	traces.Close()
	if elapsed := time.Since(start); elapsed > time.Minute {
		t.Errorf("Close took %v", elapsed)
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("the log contains a secret:\n%s", log.String())
	}
}

func TestSDKErrorsAreRateLimitedAndRedacted(t *testing.T) {
	var log logtest.Buffer
	sdk := &sdkErrors{log: logger(&log)}
	sdk.Handle(errors.New("failed to send to https://user:hunter2@collector/v1/traces: 404"))
	sdk.Handle(errors.New("another"))
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "404") || strings.Contains(text, "hunter2") {
		t.Errorf("log: %s", text)
	}
	sdk.last = sdk.last.Add(-2 * sdkErrorInterval)
	sdk.Handle(fmt.Errorf("traces export: %w", &url.Error{Op: "Post", URL: "http://a?key=hunter2", Err: errors.New("refused")}))
	if text := log.String(); !strings.Contains(text, "error=refused") {
		t.Errorf("log: %s", text)
	}
}

func TestLogHandlerAddsTraceIDs(t *testing.T) {
	var log logtest.Buffer
	at := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	logger := logger(&log).With("worker", "w1")
	logger.InfoContext(trace.ContextWithSpanContext(context.Background(), at), "with a span")
	logger.InfoContext(context.Background(), "without a span")
	first, second, _ := strings.Cut(log.String(), "\n")
	if !strings.Contains(first, "trace_id=01000000000000000000000000000000 span_id=0200000000000000") || !strings.Contains(first, "worker=w1") {
		t.Errorf("line %s", first)
	}
	if strings.Contains(second, "trace_id") || strings.Contains(second, "span_id") {
		t.Errorf("line %s", second)
	}
}
