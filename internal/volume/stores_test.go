package volume

import (
	"context"
	"errors"
	"testing"

	"lockstep/internal/testenv"
	"lockstep/tree"
)

// TestPinOfObjectsWaitsNoLongerThanItsCaller has a purge that is stopped while it rewrites the store.
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
