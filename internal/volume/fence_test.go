package volume

import (
	"os"
	"strings"
	"testing"

	"lockstep/internal/testenv"
)

// TestFenceKeepsItsLength overwrites a fence that another program has written, and its own.
func TestFenceKeepsItsLength(t *testing.T) {
	t.Parallel()
	f := folder{t.TempDir()}
	testenv.Must(0, os.WriteFile(f.fence(), []byte("8\n"), 0o644))(t)
	for _, fence := range []uint64{9, 10, 1 << 63} {
		testenv.Must(0, f.record(t.Context(), fence))(t)
		if got := testenv.Must(f.floor())(t); got != fence {
			t.Errorf("read %d, want %d", got, fence)
		}
		if content := testenv.Must(os.ReadFile(f.fence()))(t); len(content) != 21 || !strings.HasSuffix(string(content), "\n") {
			t.Errorf("the file has %q", content)
		}
	}
}
