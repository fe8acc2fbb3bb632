package redistest

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/faults.c
var faultsSource []byte

// Faulty is a redis-server whose machine may lose power, and whose wall clock may be set.
type Faulty struct {
	*Server
	synced string // file: what redis-server has flushed
	clock  string // file: how far its clock is off
}

// StartFaulty is like [StartReal], but also skips the test without a C compiler. fsync is how long a flush to
// disk takes at least.
func StartFaulty(t testing.TB, fsync time.Duration, args ...string) *Faulty {
	t.Helper()
	skipEmbedded(t)
	if _, err := exec.LookPath("gcc"); err != nil && os.Getenv("LOCKSTEP_TEST_REDIS") != "real" {
		t.Skip("needs gcc")
	}
	if major() == 6 {
		t.Skip("the files of Redis 6 have other names")
	}
	dir := t.TempDir()
	f := &Faulty{synced: filepath.Join(dir, "synced"), clock: filepath.Join(dir, "clock")}
	source, library := filepath.Join(dir, "faults.c"), filepath.Join(dir, "faults.so")
	for name, content := range map[string][]byte{source: faultsSource, f.synced: nil, f.clock: make([]byte, 8)} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("gcc", "-O1", "-shared", "-fPIC", "-o", library, source,
		"-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	f.Server = startReal(t, args, "LD_PRELOAD="+library, "FAULTS_SYNCED="+f.synced, "FAULTS_CLOCK="+f.clock,
		fmt.Sprint("FAULTS_FSYNC_US=", fsync.Microseconds()))
	return f
}

// SetClock sets the server's wall clock to the machine's time plus off.
func (f *Faulty) SetClock(off time.Duration) {
	f.t.Helper()
	file, err := os.OpenFile(f.clock, os.O_WRONLY, 0)
	if err == nil {
		// redis-server has mapped the file
		_, err = file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(off.Milliseconds())), 0)
		_ = file.Close()
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// PowerCut kills the server and takes from its append-only files what it had not flushed: all of it or, if
// torn, a random part, so that a command may be torn. Renames count as flushed. It returns how many bytes
// were not flushed, and how many of them are lost. [Server.Restart] is the return of power.
func (f *Faulty) PowerCut(torn bool) (unflushed, lost int64) {
	f.t.Helper()
	f.Stop()
	log, err := os.ReadFile(f.synced)
	if err != nil {
		f.t.Fatal(err)
	}
	flushed := map[string]int64{}
	for line := range strings.Lines(string(log)) {
		var size int64
		if _, err := fmt.Sscan(line, &size); err != nil {
			f.t.Fatalf("%q: %v", line, err)
		}
		_, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		flushed[path] = max(flushed[path], size)
	}
	files, err := filepath.Glob(filepath.Join(f.dir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) == 0 {
		f.t.Fatalf("no append-only file in %s: %v", f.dir, err)
	}
	var survived strings.Builder // counts as flushed from now on
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			f.t.Fatal(err)
		}
		written := info.Size()
		keep := min(flushed[path], written)
		unflushed += written - keep
		if torn {
			keep += rand.Int64N(written - keep + 1)
		}
		if err := os.Truncate(path, keep); err != nil {
			f.t.Fatal(err)
		}
		lost += written - keep
		fmt.Fprintf(&survived, "%d %s\n", keep, path)
	}
	if err := os.WriteFile(f.synced, []byte(survived.String()), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return unflushed, lost
}
