package access_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestTokenIsStoredAsHashAndRemovedAtOnce(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	tokens := access.NewTokens(client, events.DefaultNamespace)
	made, secret, err := tokens.Create(t.Context(), "docs")
	if err != nil || made.App != "docs" || !strings.HasPrefix(secret, "lockstep_") || len(secret) < 50 {
		t.Fatalf("%+v, %q, %v", made, secret, err)
	}
	other, another, err := tokens.Create(t.Context(), "docs")
	if err != nil || another == secret || other.ID == made.ID {
		t.Fatalf("%+v, %q, %v; want another token", other, another, err)
	}
	stored := testenv.Must(client.HGetAll(t.Context(), events.DefaultNamespace.Tokens()).Result())(t)
	for field, value := range stored {
		if strings.Contains(field+value, strings.TrimPrefix(secret, "lockstep_")) {
			t.Errorf("%s: %s reveals the token", field, value)
		}
	}
	if app, ok, err := tokens.App(t.Context(), secret); app != "docs" || !ok || err != nil {
		t.Errorf("%q, %v, %v", app, ok, err)
	}
	list := testenv.Must(tokens.List(t.Context()))(t)
	if len(list) != 2 || list[0].ID != made.ID && list[1].ID != made.ID {
		t.Errorf("%+v", list)
	}
	if _, err := tokens.Remove(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	elsewhere := access.NewTokens(client, events.DefaultNamespace)
	for _, store := range []*access.Tokens{tokens, elsewhere} {
		if _, ok, err := store.App(t.Context(), secret); ok || err != nil {
			t.Errorf("accepted %v, %v; want it refused everywhere", ok, err)
		}
	}
	if _, err := tokens.Remove(t.Context(), made.ID); !errors.Is(err, access.ErrNoSuchToken) {
		t.Errorf("removed again: %v", err)
	}
	if left := testenv.Must(tokens.List(t.Context()))(t); len(left) != 1 || left[0].ID != other.ID || !left[0].Used.IsZero() {
		t.Errorf("%+v, want the other, never used", left)
	}
	for _, app := range []string{"", "a b", "a/b", strings.Repeat("a", 101)} {
		if _, _, err := tokens.Create(t.Context(), app); err == nil {
			t.Errorf("a token for the app %q", app)
		}
	}
	for _, secret := range []string{"", "x", secret + "x", strings.Repeat("x", 1<<20), "*"} {
		if app, ok, err := tokens.App(t.Context(), secret); app != "" || ok || err != nil {
			t.Errorf("%.20q: %q, %v, %v", secret, app, ok, err)
		}
	}
}

func TestLastUseIsWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	tokens := access.NewTokens(client, events.DefaultNamespace)
	made, secret, err := tokens.Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	use := func() time.Time {
		t.Helper()
		if _, ok, err := tokens.App(t.Context(), secret); !ok || err != nil {
			t.Fatal(ok, err)
		}
		return testenv.Must(tokens.List(t.Context()))(t)[0].Used
	}
	first := use()
	if time.Since(first) > time.Minute || first.After(time.Now().Add(time.Minute)) {
		t.Errorf("used %v", first)
	}
	if err := client.HSet(t.Context(), events.DefaultNamespace.Tokens()+":used", made.ID, 1000).Err(); err != nil {
		t.Fatal(err)
	}
	if again := use(); !again.Equal(time.UnixMilli(1000)) {
		t.Errorf("written again after less than a minute: %v", again)
	}
	if restarted := access.NewTokens(client, events.DefaultNamespace); restarted != nil {
		tokens = restarted
	}
	if again := use(); !again.After(time.UnixMilli(1000)) {
		t.Errorf("not written by another process: %v", again)
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	redisServer := redistest.StartReal(t)
	tokens := access.NewTokens(redisServer.Client(), events.DefaultNamespace)
	_, secret, err := tokens.Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	basic := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	private := true
	gate := access.Gate{
		Tokens: tokens, Private: func(*http.Request) bool { return private },
		Operator: func(token string) bool { return token == "operator" }, Open: func(*http.Request) bool { return false },
	}
	identify := func(header string) (access.Identity, error) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		return gate.Identify(r)
	}
	docs, operator := access.Identity{App: "docs"}, access.Identity{Operator: true}
	for header, want := range map[string]struct {
		who access.Identity
		err error
	}{
		"":                            {err: access.ErrNoToken},
		"Bearer":                      {err: access.ErrNoToken},
		"Bearer " + secret:            {who: docs},
		"bearer  " + secret:           {who: docs},
		basic("git", secret):          {who: docs},
		basic("", secret):             {who: docs},
		basic(secret, ""):             {err: access.ErrNoToken},
		basic("git", "x"+secret):      {err: access.ErrUnknownToken},
		"Bearer " + secret[:20]:       {err: access.ErrUnknownToken},
		"Digest " + secret:            {err: access.ErrNoToken},
		"Bearer operator":             {who: operator},
		basic("anybody", "operator"):  {who: operator},
		"Basic not base64":            {err: access.ErrNoToken},
		"Bearer " + secret + " extra": {err: access.ErrUnknownToken},
	} {
		if who, err := identify(header); who != want.who || !errors.Is(err, want.err) {
			t.Errorf("%q: %+v, %v; want %+v, %v", header, who, err, want.who, want.err)
		}
	}
	private = false
	for _, header := range []string{"Bearer " + secret, "Bearer unknown"} {
		if who, err := identify(header); who != (access.Identity{}) || !errors.Is(err, access.ErrClearText) {
			t.Errorf("in clear text: %+v, %v", who, err)
		}
	}
	private = true
	redisServer.Stop()
	if who, err := identify("Bearer " + secret); who != (access.Identity{}) || err == nil || errors.Is(err, access.ErrUnknownToken) {
		t.Errorf("without Redis: %+v, %v", who, err)
	}
}
