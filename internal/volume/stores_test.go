package volume

import (
	"slices"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

// The names of a repository that has moved away stay published while another one is at its path, to which nothing must be pushed.
func TestTreeOfMovedRepositoryHasNoRemote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	defer reader.Close()
	source := reader.Dir()
	f := w.volume.folder(repoPath(t, widgets))
	b, _, err := f.readBinding()
	testenv.Must(0, err)(t)
	if remote := testenv.Must(RemoteOf(source))(t); remote != b.Remote {
		t.Errorf("the remote is %q, want %q", remote, b.Remote)
	}
	b.Remote, b.MovedAway = "https://forge.example/another/one.git", &tombstone{To: repoPath(t, "acme/moved"), At: time.Now(), Fence: w.fence.Load()}
	testenv.Must(0, f.writeBinding(b))(t)
	if remote := testenv.Must(RemoteOf(source))(t); remote != "" {
		t.Errorf("the tree of the repository that has moved has the remote %q", remote)
	}
}

func TestCommitsAreThoseAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "0"})
	w.sync("")
	for _, content := range []string{"1", "2"} {
		w.push(map[string]string{"a": content})
		w.sync("")
	}
	for name, tc := range map[string]struct{ among, want []string }{
		"a replaced one":            {[]string{first}, []string{first}},
		"one with the same start":   {[]string{first[:20] + "00000000000000000000"}, nil},
		"one that was never synced": {[]string{"0123456789012345678901234567890123456789"}, nil},
		"none":                      {nil, nil},
	} {
		got := testenv.Must(w.volume.Commits(repoPath(t, widgets), tc.among))(t)[testenv.Must(events.ParseRef("main"))(t)]
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
