package credential_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/git/wire"
	"lockstep/internal/testenv"
)

// api simulates the part of GitHub's API that issues installation tokens.
type api struct {
	key      *rsa.PublicKey
	status   int // returned instead of a token, unless 0
	header   http.Header
	hold     chan struct{} // blocks requests until closed; optional
	requests atomic.Int64
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := a.requests.Add(1)
	if a.hold != nil {
		<-a.hold
	}
	if err := a.check(r); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	for name := range a.header {
		w.Header().Set(name, a.header.Get(name))
	}
	if a.status != 0 {
		http.Error(w, "s3cret", a.status)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"token": fmt.Sprintf("token-%d", n), "expires_at": time.Now().Add(time.Hour)})
}

func (a *api) check(r *http.Request) error {
	if r.Method != http.MethodPost || r.URL.Path != "/app/installations/42/access_tokens" {
		return errors.New("another path")
	}
	parts := strings.Split(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ".")
	if len(parts) != 3 {
		return errors.New("no JWT")
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err := rsa.VerifyPKCS1v15(a.key, crypto.SHA256, sum[:], signature); err != nil {
		return err
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return err
	}
	var c struct {
		Iat, Exp int64
		Iss      string
	}
	now := time.Now().Unix()
	if err := json.Unmarshal(claims, &c); err != nil || c.Iss != "7" || c.Iat >= now || c.Exp <= now || c.Exp-c.Iat > 600 {
		return errors.New("other claims")
	}
	return nil
}

func newKey(t *testing.T) (*rsa.PrivateKey, string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

const onGitHub = "https://github.example/acme/widgets.git"

func appFolder(t *testing.T, url, key string) string {
	return folder(t, "app", map[string]string{
		"githubAppID": "7\n", "githubInstallationID": "42\n", "githubPrivateKey": key, "githubURL": url, "urls": "https://github.example/acme/",
	})
}

func TestGitHubAppToken(t *testing.T) {
	key, text := newKey(t)
	fake := &api{key: &key.PublicKey, hold: make(chan struct{})}
	server := httptest.NewServer(fake)
	defer server.Close()
	dir := appFolder(t, server.URL, text)
	store := credential.NewStore(dir, none)
	if _, err := store.Resolve(t.Context(), "app", "https://evil.example/acme/widgets.git"); err == nil || fake.requests.Load() != 0 {
		t.Fatalf("a token was fetched for another remote: %v", err)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			secret, err := store.Resolve(t.Context(), "app", onGitHub)
			if err != nil || secret != (wire.Auth{Name: "app", Username: "x-access-token", Password: "token-1"}) {
				t.Errorf("error %v, or another secret", err)
			}
		})
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("shutting down"))
	if _, err := store.Resolve(gone, "app", onGitHub); err == nil || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("waits although it was cancelled: %v", err)
	}
	close(fake.hold)
	all.Wait()
	if n := fake.requests.Load(); n < 1 || n > 2 { // the cancelled call may have sent a request, too
		t.Errorf("%d requests", n)
	}
	// A rotated key takes effect immediately.
	_, other := newKey(t)
	if err := os.WriteFile(filepath.Join(dir, "app", "githubPrivateKey"), []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Resolve(t.Context(), "app", onGitHub); events.ClassOf(err) != events.ClassAuth {
		t.Errorf("got %v", err)
	}
}

func TestRevokedTokenIsDropped(t *testing.T) {
	key, text := newKey(t)
	fake := &api{key: &key.PublicKey}
	store := credential.NewStore(appFolder(t, "https://api.test", text), none).WithTransport(inMemory{fake})
	resolve := func() wire.Auth {
		t.Helper()
		secret, err := store.Resolve(t.Context(), "app", onGitHub)
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	first := resolve()
	if !store.Refused("app", first) {
		t.Error("no token was dropped")
	}
	second := resolve()
	if first == second || fake.requests.Load() != 2 {
		t.Errorf("%d requests for the same token", fake.requests.Load())
	}
	for name, again := range map[string]bool{
		"an older token":   store.Refused("app", first),
		"no token":         store.Refused("app", wire.Auth{}),
		"a password":       store.Refused("other", wire.Auth{Password: "s3cret"}),
		"another's token":  store.Refused("other", second),
		"a bearer's token": store.Refused("app", wire.Auth{BearerToken: "s3cret"}),
	} {
		if again {
			t.Errorf("%s: dropped", name)
		}
	}
	if resolve() != second {
		t.Error("the current token was dropped")
	}
}

// TestYoungTokenIsKept has a remote refuse every token, as one that does not know new tokens for some seconds.
func TestYoungTokenIsKept(t *testing.T) {
	key, text := newKey(t)
	folder := appFolder(t, "https://api.test", text)
	synctest.Test(t, func(t *testing.T) {
		fake := &api{key: &key.PublicKey}
		store := credential.NewStore(folder, none).WithTransport(inMemory{fake})
		for at := 0 * time.Second; at < 5*time.Minute; at += 7 * time.Second {
			if !store.Refused("app", testenv.Must(store.Resolve(t.Context(), "app", onGitHub))(t)) {
				t.Errorf("after %v: a retry is said to be useless", at)
			}
			time.Sleep(7 * time.Second)
		}
		if n := fake.requests.Load(); n != 6 {
			t.Errorf("%d tokens in five minutes, want one at once and one a minute", n)
		}
	})
}

// Concurrent callers share one failing request; otherwise the last one would wait for many timeouts.
func TestFailingAPIReceivesOneRequest(t *testing.T) {
	key, text := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		fake := &api{key: &key.PublicKey, status: http.StatusBadGateway, hold: make(chan struct{})}
		store := credential.NewStore(appFolder(t, "https://api.test", text), none).WithTransport(inMemory{fake})
		resolve := func() {
			if _, err := store.Resolve(t.Context(), "app", onGitHub); events.ClassOf(err) != events.ClassServer {
				t.Errorf("got %v", err)
			}
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(resolve)
		}
		synctest.Wait()
		time.Sleep(time.Second) // until all are waiting
		close(fake.hold)
		all.Wait()
		if n := fake.requests.Load(); n != 1 {
			t.Errorf("%d requests", n)
		}
		time.Sleep(time.Second)
		resolve()
		if n := fake.requests.Load(); n != 2 {
			t.Errorf("later: %d requests", n)
		}
	})
}

// TestSlowAPIHoldsNobody has the API take 20 s for a token, and 20 s to refuse one.
func TestSlowAPIHoldsNobody(t *testing.T) {
	key, text := newKey(t)
	for name, tc := range map[string]struct {
		status int
		class  events.Class // of the later call
	}{"a token": {0, events.ClassOf(nil)}, "an error": {http.StatusBadGateway, events.ClassServer}} {
		synctest.Test(t, func(t *testing.T) {
			fake := &api{key: &key.PublicKey, status: tc.status, hold: make(chan struct{})}
			store := credential.NewStore(appFolder(t, "https://api.test", text), none).WithTransport(inMemory{fake})
			resolve := func() error { _, err := store.Resolve(t.Context(), "app", onGitHub); return err }
			for range 3 {
				began := time.Now()
				err := resolve()
				if events.DispositionOf(err) != events.Contention || events.RetryAfter(err) <= 0 || time.Since(began) > 3*time.Second {
					t.Errorf("%s: %v after %v, want it to be asked for later", name, err, time.Since(began))
				}
			}
			if !store.Refused("app", wire.Auth{Password: "an older one"}) {
				t.Errorf("%s: a refused token is not being replaced", name)
			}
			time.Sleep(10 * time.Second)
			close(fake.hold)
			synctest.Wait()
			if err := resolve(); events.ClassOf(err) != tc.class || fake.requests.Load() != 1 {
				t.Errorf("%s: %v after %d requests", name, err, fake.requests.Load())
			}
			_ = resolve()
			if n := fake.requests.Load(); tc.status != 0 && n != 2 {
				t.Errorf("%s: %d requests, want the error returned once", name, n)
			}
		})
	}
}

func TestTokenIsRenewed(t *testing.T) {
	key, text := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		fake := &api{key: &key.PublicKey}
		store := credential.NewStore(appFolder(t, "https://api.test", text), none).WithTransport(inMemory{fake})
		want := func(token string) {
			t.Helper()
			if secret, err := store.Resolve(t.Context(), "app", onGitHub); err != nil || secret.Password != token {
				t.Errorf("error %v, or another token than %s", err, token)
			}
		}
		want("token-1")
		time.Sleep(54 * time.Minute)
		want("token-1")
		time.Sleep(2 * time.Minute)
		want("token-2")
	})
}

// inMemory answers requests without a network.
type inMemory struct{ handler http.Handler }

func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	m.handler.ServeHTTP(w, r)
	return w.Result(), nil
}

func TestGitHubErrors(t *testing.T) {
	key, text := newKey(t)
	for name, tc := range map[string]struct {
		status      int
		header      http.Header
		edit        map[string]string
		class       events.Class
		disposition events.Disposition
	}{
		"a server error":    {status: 502, class: events.ClassServer, disposition: events.Retryable},
		"a redirect":        {status: 302, header: http.Header{"Location": {"https://evil.example/"}}, class: events.ClassServer, disposition: events.Retryable},
		"too many requests": {status: 429, class: events.ClassServer, disposition: events.Retryable},
		"a rate limit":      {status: 403, header: http.Header{"X-Ratelimit-Remaining": {"0"}}, class: events.ClassServer, disposition: events.Retryable},
		"suspended":         {status: 403, class: events.ClassAuth, disposition: events.Permanent},
		"uninstalled":       {status: 404, class: events.ClassAuth, disposition: events.Permanent},
		"another key":       {edit: map[string]string{"githubAppID": "8"}, class: events.ClassAuth, disposition: events.Permanent},
		"no app ID":         {edit: map[string]string{"githubAppID": ""}, class: events.ClassConfig, disposition: events.Permanent},
		"no installation":   {edit: map[string]string{"githubInstallationID": "../x"}, class: events.ClassConfig, disposition: events.Permanent},
		"no key":            {edit: map[string]string{"githubPrivateKey": "s3cret"}, class: events.ClassConfig, disposition: events.Permanent},
		"no API":            {edit: map[string]string{"githubURL": "ftp://s3cret@x"}, class: events.ClassConfig, disposition: events.Permanent},
		"unreachable API":   {edit: map[string]string{"githubURL": "http://127.0.0.1:1"}, class: events.ClassNetwork, disposition: events.Retryable},
		"no token":          {status: 201, class: events.ClassServer, disposition: events.Retryable},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(&api{key: &key.PublicKey, status: tc.status, header: tc.header})
			defer server.Close()
			dir := appFolder(t, server.URL, text)
			for file, text := range tc.edit {
				if err := os.WriteFile(filepath.Join(dir, "app", file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := credential.NewStore(dir, none).Resolve(t.Context(), "app", onGitHub)
			if err == nil || events.ClassOf(err) != tc.class || events.DispositionOf(err) != tc.disposition {
				t.Errorf("got %s, %s: %v", events.ClassOf(err), events.DispositionOf(err), err)
			}
			if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("error: %v", err)
			}
		})
	}
}
