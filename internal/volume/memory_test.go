package volume

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestMemoryOfASync syncs large files in child processes and checks their peak memory, including for a small
// change to a large file.
func TestMemoryOfASync(t *testing.T) {
	t.Parallel()
	if root := os.Getenv("LOCKSTEP_TEST_MEMORY_ROOT"); root != "" {
		syncAlone(t, root)
		return
	}
	testenv.SkipUnderRace(t)
	testenv.Long(t) // it writes a gigabyte
	w := newWorld(t)
	w.create(map[string]string{"small": "1"})
	w.commitLarge(io.LimitReader(incompressible(), hugeBlob))
	w.mustSyncWithin("a file of 200 MB", peakKB)
	w.commitLarge(io.MultiReader(strings.NewReader("a line more\n"), io.LimitReader(incompressible(), hugeBlob)))
	w.mustSyncWithin("a line more in it", peakKB)
	w.commitLarge(io.LimitReader(endless{}, 1<<30))
	w.mustSyncWithin("refused: quota", peakKB)
}

// commitLarge commits the file "large" to main.
func (w *world) commitLarge(content io.Reader) {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "large")
	out := testenv.Must(os.Create(file))(w.t)
	testenv.Must(io.Copy(out, content))(w.t)
	testenv.Must(0, out.Close())(w.t)
	blob := testenv.Must(w.git.Git(w.t.Context(), widgets, "", "-c", "core.compression=1", "hash-object", "-w", file))(w.t)
	tree := testenv.Must(w.git.Tree(w.t.Context(), widgets, gitserver.Entry{Mode: "100644", Name: "large", Hash: blob}))(w.t)
	testenv.Must(w.git.CommitTree(w.t.Context(), widgets, gitserver.Main, tree))(w.t)
}

func (w *world) mustSyncWithin(what string, kB int) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), os.Args[0], "-test.run=^TestMemoryOfASync$")
	cmd.Env = append(os.Environ(), "LOCKSTEP_TEST_MEMORY_ROOT="+w.volume.Root(), "LOCKSTEP_TEST_MEMORY_URL="+w.git.URL(widgets),
		fmt.Sprintf("LOCKSTEP_TEST_MEMORY_FENCE=%d", w.fence.Add(1)))
	out, err := cmd.CombinedOutput()
	_, rest, _ := strings.Cut(string(out), "VmHWM:")
	var peak int
	if _, scanErr := fmt.Sscan(rest, &peak); err != nil || scanErr != nil {
		w.t.Fatalf("%s: %v, %v\n%s", what, err, scanErr, out)
	}
	refused := strings.Contains(string(out), "class quota")
	if refused != strings.HasPrefix(what, "refused") {
		w.t.Errorf("%s: %s", what, out)
	}
	w.t.Logf("%s: %d MB", what, peak>>10)
	if peak > kB {
		w.t.Errorf("%s: the process had %d MB", what, peak>>10)
	}
}

func syncAlone(t *testing.T, root string) {
	v := testenv.Must(OpenVolume(root, Config{}))(t)
	defer v.Close()
	var fence uint64
	testenv.Must(fmt.Sscan(os.Getenv("LOCKSTEP_TEST_MEMORY_FENCE"), &fence))(t)
	_, err := v.Sync(t.Context(), SyncRequest{Repo: repoPath(t, widgets), URL: os.Getenv("LOCKSTEP_TEST_MEMORY_URL"), Fence: fence})
	if err != nil {
		fmt.Printf("class %s: %v\n", events.ClassOf(err), err)
	}
	status := testenv.Must(os.ReadFile("/proc/self/status"))(t)
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	fmt.Println("VmHWM:", peak)
}

const (
	hugeBlob = 200 << 20 // bytes
	peakKB   = 100 << 10 // limit for each sync process
)

// endless is an endless reader of content that compresses well.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// incompressible is an endless reader of content that does not compress.
func incompressible() io.Reader { return rand.NewChaCha8([32]byte{}) }
