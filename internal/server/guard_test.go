package server_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
)

// TestTokenOfAnAppIsNotTheOperators sends the token of an app to routes of the operator, on loopback and without an API token: it gets nothing, while
// requests without a token do.
func TestTokenOfAnAppIsNotTheOperators(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	_, token, err := access.NewTokens(client, events.DefaultNamespace).Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(server.Handler(server.Config{
		Watches: watchesOf(client), Loopback: true, Metrics: telemetry.New().Handler(), Log: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(srv.Close)
	for authorization, want := range map[string]int{"": 200, "Bearer " + token: 403, "Basic " + basic("any", token): 403} {
		r := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/api/v1/watches", nil))(t)
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		resp := testenv.Must(http.DefaultClient.Do(r))(t)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%.20q: %s, want %d", authorization, resp.Status, want)
		}
	}
}
