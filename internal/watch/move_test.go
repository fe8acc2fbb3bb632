package watch_test

import (
	"context"
	"testing"

	"lockstep/internal/watch"
)

// A watch's credential only works with its transport.
func TestMoveKeepsTheTransport(t *testing.T) {
	for name, tc := range map[string]struct{ ssh, https, to, wantSSH, wantHTTPS string }{
		"to HTTPS": {
			"ssh://git@example.com/acme/widgets.git", "https://example.com/acme/widgets", "https://example.com/acme/gadgets.git",
			"ssh://git@example.com/acme/gadgets.git", "https://example.com/acme/gadgets.git",
		},
		"to HTTPS, from below the home": {
			"git@example.com:acme/widgets.git", "https://example.com/acme/widgets", "https://example.com/acme/gadgets.git",
			"ssh://git@example.com:/acme/gadgets.git", "https://example.com/acme/gadgets.git",
		},
		"to SSH": {
			"ssh://git@example.com:22/acme/widgets", "https://example.com/acme/widgets.git", "ssh://git@example.com/acme/gadgets",
			"ssh://git@example.com/acme/gadgets", "https://example.com/acme/gadgets",
		},
		"to another host": {
			"ssh://git@example.com/acme/widgets", "https://example.com/acme/widgets", "https://example.org/acme/gadgets",
			"https://example.org/acme/gadgets", "https://example.org/acme/gadgets",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.put(watch.Watch{App: "docs", URL: tc.https, Credential: "token"}, watch.Watch{App: "scan", URL: tc.ssh, Credential: "key"})
			for range 2 {
				if _, err := b.Move(context.Background(), path(t, "acme/widgets"), path(t, "acme/gadgets"), tc.to); err != nil {
					t.Fatal(err)
				}
			}
			moved := b.set("acme/gadgets").Watches
			if len(moved) != 2 || moved[0].URL != tc.wantHTTPS || moved[1].URL != tc.wantSSH {
				t.Errorf("moved to %+v; want docs at %s and scan at %s", moved, tc.wantHTTPS, tc.wantSSH)
			}
		})
	}
}
