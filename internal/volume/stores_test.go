package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

// TestPinOfObjectsWaitsNoLongerThanItsCaller has a process that is stopped while it prunes the store.
func TestPinOfObjectsWaitsNoLongerThanItsCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	w.sync("")
	reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	defer reader.Close()
	store := testenv.Must(w.volume.StoreOf(reader.Dir()))(t)
	release, ok, err := claimFile(objectsPin(store.Dir))
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		file, err := PinObjects(ctx, reader.Dir())
		if err == nil {
			_ = file.Close()
		}
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the caller has left", err)
	}
	release()
	testenv.Must(PinObjects(t.Context(), reader.Dir()))(t).Close()
}

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

// A workspace may use objects of the store that no tree needs: git finds there what it fetches.
func TestPruneKeepsPinnedObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.create(map[string]string{"a": "0"})
	w.sync("")
	reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	pin := testenv.Must(PinObjects(t.Context(), reader.Dir()))(t)
	for i := range 5 {
		w.push(map[string]string{"a": fmt.Sprint("next ", i)})
		w.sync("")
	}
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	s := testenv.Must(f.currentStore(nil))(t)
	all := looseCount(t, s)
	testenv.Must(0, w.prune(f, w.fence.Load()))(t)
	if n := looseCount(t, s); n != all {
		t.Errorf("%d of %d objects are left while they are pinned", n, all)
	}
	var kept int64 // decides when to prune again
	_ = testenv.Must(fmt.Sscan(string(testenv.Must(os.ReadFile(filepath.Join(s.dir, prunedName)))(t)), &kept))(t)
	if loose := testenv.Must(s.sortLoose(nil))(t); kept != loose.spare {
		t.Errorf("%d of %d bytes count as kept while they are pinned", kept, loose.spare)
	}
	_ = unix.Flock(int(pin.Fd()), unix.LOCK_UN) // a child of another test may share the open file
	pin.Close()
	closeTree(t, reader)
	testenv.Must(0, w.prune(f, w.fence.Load()))(t)
	if n := looseCount(t, s); n >= all {
		t.Errorf("all %d objects are left without a pin", n)
	}
}

func TestTreeOfViewHasNoObjects(t *testing.T) {
	t.Parallel()
	if _, err := PinObjects(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "use the name of its repository, without the view") {
		t.Errorf("got %v", err)
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
