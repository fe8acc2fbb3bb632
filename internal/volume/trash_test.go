package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/disk"
	"lockstep/internal/testenv"
)

// TestStoppedPreparationDeletesNothing stops a preparation of a repository with much trash: somebody waits for its lease.
func TestStoppedPreparationDeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.volume.janitor.close()
	f := w.volume.folder(repoPath(t, widgets))
	for i := range 2 * muchTrash {
		testenv.Must(0, os.MkdirAll(filepath.Join(f.trash(), fmt.Sprint(i)), 0o755))(t)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	wanted := errors.New("wanted")
	cancel(wanted)
	if _, err := w.volume.Prepare(ctx, w.prepareRequest("refs/heads/main")); !errors.Is(err, wanted) {
		t.Fatal(err)
	}
	if left := len(testenv.Must(disk.ReadDir(f.trash()))(t)); left < 2*muchTrash {
		t.Errorf("the trash has %d entries", left)
	}
}
