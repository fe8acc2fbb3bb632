package handlers_test

import (
	"context"
	"testing"

	"lockstep/events"
	"lockstep/handlers"
)

// issued returns temporary credentials. The first one is revoked before it expires.
type issued struct{ tokens []string }

func (c *issued) Resolve(context.Context, string, string) (handlers.Secret, error) {
	return handlers.Secret{Username: "bot", Password: c.tokens[0]}, nil
}

func (c *issued) Refused(_ string, secret handlers.Secret) bool {
	if len(c.tokens) == 1 || secret.Password != c.tokens[0] {
		return false
	}
	c.tokens = c.tokens[1:]
	return true
}

func (c *issued) URLs(string) ([]string, error) { return nil, nil }

func TestRevokedTokenIsReplaced(t *testing.T) {
	w := newWorld(t)
	head := w.create(map[string]string{"a": "1"})
	w.git.RequireAuth("acme/widgets", "bot", "fresh")
	w.handlers.Credentials = &issued{tokens: []string{"revoked", "fresh"}}
	change := events.Change{URL: w.git.URL("acme/widgets"), Credential: "app"}
	_, err := w.handle("1-0", change)
	if events.ClassOf(err) != events.ClassAuth || events.DispositionOf(err) != events.Retryable {
		t.Fatalf("with a revoked token: %v; want it retryable", err)
	}
	if r := w.mustHandle("1-0", change); r.After != head {
		t.Errorf("unexpected result %+v", r)
	}
	w.git.RequireAuth("acme/widgets", "bot", "another")
	_, err = w.handle("2-0", change)
	if events.ClassOf(err) != events.ClassAuth || events.DispositionOf(err) != events.Permanent {
		t.Errorf("without a better one: %v; want it permanent", err)
	}
}
