package handlers_test

import (
	"slices"
	"testing"
)

// A move asks two remotes. The credential goes where it may be sent, and the other is asked without one.
func TestMoveSendsCredentialOnlyToItsURLs(t *testing.T) {
	for name, tc := range map[string]struct {
		mayGo func(w *world) string
		old   string // the token that the old remote sees
	}{
		"to the new remote": {mayGo: func(w *world) string { return w.git.URL("acme/gadgets") }},
		"to both":           {mayGo: func(w *world) string { return w.git.URL("acme/gadgets") + " " + w.git.URL("acme/widgets") }, old: "token-of-bot"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			move := w.renamed()
			w.env["LOCKSTEP_CREDENTIAL_BOT_PASSWORD"] = "token-of-bot"
			w.env["LOCKSTEP_CREDENTIAL_BOT_URLS"] = tc.mayGo(w)
			w.git.AcceptTokens("acme/widgets", "token-of-bot")
			w.git.AcceptTokens("acme/gadgets", "token-of-bot")
			before := len(w.git.TokensSeen("acme/widgets"))
			move.Credential = "bot"

			w.mustHandle("2-0", move)

			seen := w.git.TokensSeen("acme/widgets")[before:]
			if !slices.Equal(seen, []string{tc.old}) {
				t.Errorf("the old remote saw %q", seen)
			}
			if seen := w.git.TokensSeen("acme/gadgets"); !slices.Contains(seen, "token-of-bot") {
				t.Errorf("the new remote saw %q", seen)
			}
		})
	}
}
