package telemetry_test

import (
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/telemetry"
)

const (
	changes = "lockstep:{0}:changes"
	results = "lockstep:{0}:results"
)

// scrape returns the exported metrics.
func scrape(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	response := httptest.NewRecorder()
	m.Handler().ServeHTTP(response, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(response.Body)
	if err != nil || response.Code != 200 {
		t.Fatalf("%d %v: %s", response.Code, err, text)
	}
	return string(text)
}

// has checks that the metrics contain each line.
func has(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("missing %s", line)
		}
	}
}

func TestStreamMetricsAreCached(t *testing.T) {
	ctx := context.Background()
	client := redistest.Start(t).Client()
	for range 3 {
		client.XAdd(ctx, &redis.XAddArgs{Stream: changes, Values: []string{"a", "1"}})
	}
	client.XGroupCreate(ctx, changes, "workers", "0")
	client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "w1", Streams: []string{changes, ">"}, Block: -1})
	client.ZAdd(ctx, stream.DueKey(string(events.DefaultNamespace), changes, "workers"), redis.Z{Score: 1, Member: "1-1"})
	client.XAdd(ctx, &redis.XAddArgs{Stream: events.DefaultNamespace.Dead(), Values: []string{"reason", "r"}})

	hook := &redistest.RoundTrips{}
	client.AddHook(hook)
	metrics, streams := telemetry.New(), telemetry.NewStreams(client, string(events.DefaultNamespace), changes, results)
	metrics.Export(streams)
	text := scrape(t, metrics)
	has(t, text, "lockstep_streams_up 1", "lockstep_dead_letters 1",
		`lockstep_stream_entries{stream="lockstep:{0}:changes"} 3`, `lockstep_stream_entries{stream="lockstep:{0}:results"} 0`,
		`lockstep_stream_lag{group="workers",stream="lockstep:{0}:changes"} 0`,
		`lockstep_stream_pending{group="workers",stream="lockstep:{0}:changes"} 3`,
		`lockstep_stream_due{group="workers",stream="lockstep:{0}:changes"} 1`,
		`lockstep_stream_late{group="workers",stream="lockstep:{0}:changes"} 1`,
		`lockstep_stream_consumers{group="workers",stream="lockstep:{0}:changes"} 1`)
	if !strings.Contains(text, `lockstep_stream_oldest_unsettled_seconds{group="workers"`) {
		t.Error("the age of the oldest unsettled entry is missing")
	}

	first := hook.Load()
	if scrape(t, metrics); hook.Load() != first {
		t.Errorf("%d more round trips, want cached statistics", hook.Load()-first)
	}
}

func TestScrapeWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	server.Stop()
	metrics := telemetry.New()
	metrics.Export(telemetry.NewStreams(client, string(events.DefaultNamespace), changes))
	metrics.ExportHosts(telemetry.NewHosts(hosts.Reader{Redis: client, Prefix: string(events.DefaultNamespace)}))
	text := scrape(t, metrics)
	has(t, text, "lockstep_streams_up 0")
	if strings.Contains(text, "lockstep_stream_entries{") || strings.Contains(text, "lockstep_host_") {
		t.Error("statistics of streams or hosts are exported")
	}
}

func TestTrimsAreCountedByCause(t *testing.T) {
	metrics := telemetry.New()
	for range 2 {
		metrics.Trim(stream.Trim{Stream: changes, Settled: 5, Aged: 2, Capped: 3, Lost: map[string]int64{"slow": 1}})
		metrics.Trim(stream.Trim{Stream: "lockstep:{0}:dead", Dead: true, Aged: 4, Capped: 6})
	}
	has(t, scrape(t, metrics),
		`lockstep_stream_trimmed_total{cause="settled",stream="lockstep:{0}:changes"} 10`,
		`lockstep_stream_trimmed_total{cause="age",stream="lockstep:{0}:changes"} 4`,
		`lockstep_stream_trimmed_total{cause="length",stream="lockstep:{0}:changes"} 6`,
		`lockstep_stream_dropped_total{group="slow",stream="lockstep:{0}:changes"} 2`,
		`lockstep_dead_letters_dropped_total{cause="age"} 8`, `lockstep_dead_letters_dropped_total{cause="length"} 12`)
}
