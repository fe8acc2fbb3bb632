package server_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/watch"
)

const hubSecret = "a secret of the hub, 32 bytes or so"

func signed(body []byte) string {
	mac := hmac.New(sha256.New, []byte(hubSecret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

func hubSources(t testing.TB) *forge.Sources {
	t.Helper()
	sources, err := forge.LoadSources("", []string{"LOCKSTEP_HOOK_HUB_FORGE=github", "LOCKSTEP_HOOK_HUB_SECRET=" + hubSecret})
	if err != nil {
		t.Fatal(err)
	}
	return sources
}

// BenchmarkHook measures one push of 10 KB to a repository with one watch, from the request to the response.
func BenchmarkHook(b *testing.B) {
	body, err := os.ReadFile(filepath.Join("..", "forge", "testdata", "github-push.json"))
	if err != nil {
		b.Fatal(err)
	}
	sources := hubSources(b)
	header := http.Header{"X-Github-Event": {"push"}, "X-Hub-Signature-256": {signed(body)}}
	src, _, _ := sources.Get("hub")
	d, err := forge.Receive(src, header, body, time.Now())
	if err != nil || len(d.Events) == 0 {
		b.Fatal(d, err)
	}
	registry := watch.NewRegistry(redistest.Start(b).Client(), events.DefaultNamespace)
	if _, err := registry.Put(b.Context(), watch.Watch{App: "docs", Repo: d.Events[0].Repo, URL: d.Events[0].URL}); err != nil {
		b.Fatal(err)
	}
	in, err := intake.New(intake.Config{Registry: registry, Sources: sources})
	if err != nil {
		b.Fatal(err)
	}
	m := telemetry.New()
	handler := server.Handler(server.Config{
		Hooks: &server.Hooks{Sources: sources, Intake: in, Observe: m.Hooks(nil).Request}, Metrics: m.Handler(), Log: slog.New(slog.DiscardHandler),
	})
	b.SetParallelism(16)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := httptest.NewRequest("POST", "/hooks/hub", bytes.NewReader(body))
			r.Header = header.Clone()
			r.Header.Set("X-Github-Delivery", uuid.NewString())
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != http.StatusAccepted {
				b.Fatal(w.Code, w.Body)
			}
		}
	})
}
