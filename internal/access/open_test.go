package access_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestRemovingTheLastTokenOpensNothing sends requests without a token where they are the operator's until an app has a token.
func TestRemovingTheLastTokenOpensNothing(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	tokens := access.NewTokens(client, events.DefaultNamespace)
	anonymous := func(tokens *access.Tokens) (access.Identity, error) {
		gate := access.Gate{
			Tokens: tokens, Operator: func(string) bool { return false },
			Open: func(*http.Request) bool { return true }, Private: func(*http.Request) bool { return true },
		}
		return gate.Identify(httptest.NewRequest(http.MethodGet, "/", nil))
	}
	if who, err := anonymous(tokens); err != nil || !who.Operator {
		t.Fatalf("before there are tokens: %+v, %v", who, err)
	}
	made, secret, err := tokens.Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string, tokens *access.Tokens) {
		t.Helper()
		if who, err := anonymous(tokens); !errors.Is(err, access.ErrNoToken) {
			t.Errorf("%s: %+v, %v; want %v", when, who, err, access.ErrNoToken)
		}
	}
	refused("with a token", tokens)
	restored := access.NewTokens(client, "restored:")
	one := access.Token{Hash: access.HashOf(secret), App: made.App, Created: made.Created}
	for _, want := range []bool{true, false} { // the second is kept as it is
		if added, err := restored.Restore(t.Context(), one); added != want || err != nil {
			t.Fatal(added, err)
		}
	}
	for when, tokens := range map[string]*access.Tokens{"removed": tokens, "restored and removed": restored} {
		testenv.Must(tokens.Remove(t.Context(), made.ID))(t)
		refused(when, tokens)
		if list := testenv.Must(tokens.List(t.Context()))(t); len(list) != 0 {
			t.Errorf("%s: %+v", when, list)
		}
	}
	copied := access.NewTokens(client, "copied:")
	if added, err := tokens.CopyTo(t.Context(), copied); added != 0 || err != nil {
		t.Fatal(added, err)
	}
	refused("copied without tokens", copied)
}
