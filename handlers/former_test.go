package handlers_test

import (
	"slices"
	"testing"
)

func TestMoveSendsCredentialOnlyToItsURLs(t *testing.T) {
	for name, tc := range map[string]struct {
		urls func(w *world) string
		old  bool // whether the old remote receives the token
	}{
		"to the new remote": {urls: func(w *world) string { return w.git.URL("acme/gadgets") }},
		"to both":           {urls: func(w *world) string { return w.git.URL("acme/gadgets") + " " + w.git.URL("acme/widgets") }, old: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			move := w.renamed()
			w.env["LOCKSTEP_CREDENTIAL_BOT_PASSWORD"] = "token-of-bot"
			w.env["LOCKSTEP_CREDENTIAL_BOT_URLS"] = tc.urls(w)
			w.git.AcceptTokens("acme/widgets", "token-of-bot")
			w.git.AcceptTokens("acme/gadgets", "token-of-bot")
			before := len(w.git.TokensSeen("acme/widgets"))
			move.Credential = "bot"

			w.mustHandle("2-0", move)

			tokens := slices.Compact(w.git.TokensSeen("acme/widgets")[before:])
			// the watch has no credential
			if slices.Contains(tokens, "token-of-bot") != tc.old {
				t.Errorf("the old remote received %q", tokens)
			}
			if tokens := w.git.TokensSeen("acme/gadgets"); !slices.Contains(tokens, "token-of-bot") {
				t.Errorf("the new remote received %q", tokens)
			}
		})
	}
}
