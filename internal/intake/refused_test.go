package intake_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/intake"
	"lockstep/internal/redistest"
	"lockstep/internal/spool"
)

// breakRemote makes the registry fail for acme/broken, by a key of another type.
func (r *rig) breakRemote() {
	r.t.Helper()
	if err := r.client.Set(r.t.Context(), events.DefaultNamespace.Watches()+"at:example.com/acme/broken", "no hash", 0).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// awaitChanges waits until webhooks have queued n changes.
func (r *rig) awaitChanges(n int) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); len(r.changes()) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%d changes, want %d", len(r.changes()), n)
		}
	}
}

// leave makes a process that dies leave deliveries in a directory.
func (r *rig) leave(dir string, names ...string) {
	r.t.Helper()
	dead, err := spool.Open(dir, 1<<30)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server.Stop()
	alive := r.in
	r.in = r.intake(dead)
	for _, name := range names {
		r.must(push(r.t, "left by the dead: "+name, name), intake.Spooled)
	}
	r.in = alive
	r.server.Restart()
}

func TestRefusedAdoptedDeliveryDoesNotBlockOwnOnes(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir, 1<<30)
	r.breakRemote()
	r.leave(dir, "acme/broken")
	r.server.Stop()
	r.must(push(t, "d1", "acme/widgets"), intake.Spooled)
	r.server.Restart()
	r.run(r.in)
	r.awaitChanges(1)
}

func TestRefusedOwnDeliveryDoesNotBlockAdoptedOnes(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir, 1<<30)
	r.breakRemote()
	r.must(push(t, "b1", "acme/broken"), intake.Spooled)
	r.run(r.in)
	r.leave(dir, "acme/widgets")
	for deadline := time.Now().Add(time.Minute); len(r.changes()) < 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the delivery was not adopted")
		}
	}
}

func TestRefusalIsLoggedOnce(t *testing.T) {
	r := newRig(t, t.TempDir(), 1<<30)
	r.breakRemote()
	r.must(push(t, "b1", "acme/broken"), intake.Spooled)
	var tries redistest.RoundTrips
	r.client.AddHook(&tries)
	r.run(r.in)
	for deadline := time.Now().Add(time.Minute); tries.Load() < 4; time.Sleep(time.Millisecond) { // three have ended by then
		if time.Now().After(deadline) {
			t.Fatalf("only %d attempts", tries.Load())
		}
	}
	r.must(push(t, "d1", "acme/widgets"), intake.Accepted) // nothing waits for what is refused
	for n, id := range []string{"d2", "d3", "d4"} {
		item, err := json.Marshal(map[string]any{"at": time.Now(), "delivery": push(t, id, "acme/widgets")})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.spool.Append(t.Context(), item); err != nil {
			t.Fatal(err)
		}
		r.awaitChanges(n + 2)
	}
	if logged := r.log.String(); strings.Count(logged, "level=WARN") != 1 || strings.Contains(logged, "redis is back") {
		t.Errorf("want one warning, and nothing about Redis, which was reachable: %s", logged)
	}
}

// TestFullDiskDoesNotStopTheDrain runs in a child process, because it limits the size of all files of the process.
func TestFullDiskDoesNotStopTheDrain(t *testing.T) {
	const alone = "INTAKE_TEST_FULL_DISK"
	if os.Getenv(alone) == "" {
		child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), alone+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	r := newRig(t, t.TempDir(), 1<<30)
	r.server.Stop()
	for _, id := range []string{"d1", "d2", "d3"} {
		r.must(push(t, id, "acme/widgets"), intake.Spooled)
	}
	r.server.Restart()
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1, Max: was.Max}); err != nil { // a full disk
		t.Fatal(err)
	}
	r.must(push(t, "d4", "acme/widgets"), intake.Accepted) // sent directly, because the disk is full
	r.run(r.in)
	r.awaitIDs(4)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.drained, slices.Repeat([]string{intake.Accepted}, 3)) {
		t.Errorf("%q; want each accepted once", r.drained)
	}
}
