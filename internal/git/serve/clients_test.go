package serve

import (
	"slices"
	"strings"
	"testing"

	"lockstep/internal/gitclients"
	"lockstep/internal/testenv"
)

// TestOtherClients clones and fetches with clients that are not Git, most of them with protocol 0 only.
func TestOtherClients(t *testing.T) {
	for _, name := range gitclients.Names {
		t.Run(name, func(t *testing.T) {
			testenv.Long(t)
			w := newWorld(t, nil)
			a := newAuthor(w, widgets, "sha1", seedOf(t))
			clone := t.TempDir() + "/clone"
			client := gitclients.Start(t, name, clone)
			t.Log(client.Version)
			for range 4 {
				a.commits(6)
				a.pack()
				testenv.Must(client.Fetch(w.url(widgets)))(t)
				if len(w.packs()) == 0 {
					t.Error("no pack was served")
				}
				heads := strings.Fields(w.git(w.forge.Dir(widgets), "for-each-ref", "--format=%(objectname)", "refs/heads"))
				list := slices.Concat([]string{"rev-list", "--objects"}, heads)
				if got, want := w.git(clone, list...), w.git(w.forge.Dir(widgets), list...); got != want {
					t.Fatalf("the clone differs:\n%s\nwant\n%s", got, want)
				}
				w.git(clone, "fsck", "--full", "--strict")
			}
		})
	}
}
