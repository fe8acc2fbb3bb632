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
	document := export(t, from)
	for _, tc := range []struct {
		options Options
		want    bool
	}{{Options{NoTokens: true}, false}, {Options{}, true}} {
		restore(t, to, document, tc.options)
		if got := must(access.NewTokens(to, namespace).Required(t.Context()))(t); got != tc.want {
			t.Errorf("after an import with %+v: tokens required %v, want %v", tc.options, got, tc.want)
		}
	}
}
