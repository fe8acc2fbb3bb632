package handlers_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// githubApp sets the variables of the credential "app", which is a GitHub App, and returns how many tokens it was issued. Its API
// issues these tokens in turn.
func (w *world) githubApp(urls string, tokens ...string) (issued *atomic.Int64) {
	w.t.Helper()
	issued = &atomic.Int64{}
	api := httptest.NewServer(http.HandlerFunc(func(res http.ResponseWriter, _ *http.Request) {
		n := issued.Add(1)
		res.WriteHeader(http.StatusCreated)
		token := map[string]any{"token": tokens[min(int(n), len(tokens))-1], "expires_at": time.Now().Add(time.Hour)}
		_ = json.NewEncoder(res).Encode(token)
	}))
	w.t.Cleanup(api.Close)
	key := testenv.Must(rsa.GenerateKey(rand.Reader, 1024))(w.t)
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	for name, text := range map[string]string{
		"APP_ID": "7", "INSTALLATION_ID": "42", "PRIVATE_KEY": string(pem.EncodeToMemory(block)), "URL": api.URL,
	} {
		w.env["LOCKSTEP_CREDENTIAL_APP_GITHUB_"+name] = text
	}
	w.env["LOCKSTEP_CREDENTIAL_APP_URLS"] = urls
	return issued
}

const githubUser = "x-access-token" // of an App's tokens

func TestRevokedTokenIsReplaced(t *testing.T) {
	w := newWorld(t)
	head := w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.git.RequireAuth("acme/widgets", githubUser, "fresh")
	w.githubApp(url, "revoked", "fresh")
	change := events.Change{URL: url, Credential: "app"}
	_, err := w.handle("1-0", change)
	if events.ClassOf(err) != events.ClassAuth || events.DispositionOf(err) != events.Retryable {
		t.Fatalf("with a revoked token: %v; want it retryable", err)
	}
	if _, err := w.handle("2-0", change); events.ScopeOf(err) != events.ScopeNone {
		t.Errorf("right after that: %v; want it to wait", err)
	}
	w.later = time.Minute
	if r := w.mustHandle("1-0", change); r.After != head {
		t.Errorf("unexpected result %+v", r)
	}
	w.git.RequireAuth("acme/widgets", "bot", "another")
	w.credential("ci", "wrong", "acme")
	_, _ = w.handle("2-0", events.Change{URL: url, Credential: "ci"})
	w.later += time.Hour
	_, err = w.handle("2-0", events.Change{URL: url, Credential: "ci"})
	if events.ClassOf(err) != events.ClassAuth || events.DispositionOf(err) != events.Permanent || strings.Contains(err.Error(), "new token") {
		t.Errorf("without a better one: %v; want it permanent", err)
	}
}
