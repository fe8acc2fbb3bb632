package backup

import (
	"testing"

	"lockstep/internal/access"
	"lockstep/internal/redistest"
)

// TestRemovedTokensStayRequired exports after the last token was removed: a reader of the import is not open to requests without a token.
func TestRemovedTokensStayRequired(t *testing.T) {
	t.Parallel()
	from, to := redistest.Start(t).Client(), redistest.Start(t).Client()
	if required := must(access.NewTokens(from, namespace).Required(t.Context()))(t); required {
		t.Fatal("tokens are required before there is one")
	}
	tokens := access.NewTokens(from, namespace)
	made, _, err := tokens.Create(t.Context(), "docs")
	must(tokens.Remove(t.Context(), must(made, err)(t).ID))(t)
	restore(t, to, export(t, from))
	if !must(access.NewTokens(to, namespace).Required(t.Context()))(t) {
		t.Error("tokens are not required after the import")
	}
}
