package volume

import (
	"context"
	"errors"
	"slices"
	"testing"

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
	path := testenv.Must(ObjectsPin(reader.Dir()))(t)
	release, ok, err := claimFile(path)
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
