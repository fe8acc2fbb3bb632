package object

import (
	"bufio"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

var (
	largeBlob = testenv.Form(64<<20, 200<<20) // bytes
	maxPeak   = testenv.Form(45<<10, 100<<10) // kB of a process that receives one of the packs
)

// TestMemoryForLargeObjects receives each pack in a separate process and checks the peak memory of the process.
func TestMemoryForLargeObjects(t *testing.T) {
	if job := os.Getenv("LOCKSTEP_TEST_PACK_JOB"); job != "" {
		receiveAlone(t, job, os.Getenv("LOCKSTEP_TEST_PACK_DIR"))
		return
	}
	testenv.SkipUnderRace(t)
	t.Parallel()
	dir := t.TempDir()
	for _, job := range testenv.Form([]string{"large", "thin"}, []string{"large", "thin", "bomb", "bomb of a delta"}) {
		cmd := exec.CommandContext(testenv.Context(t), os.Args[0], "-test.run=^TestMemoryForLargeObjects$")
		cmd.Env = append(os.Environ(), "LOCKSTEP_TEST_PACK_JOB="+job, "LOCKSTEP_TEST_PACK_DIR="+dir)
		out, err := cmd.CombinedOutput()
		var peak int
		_, rest, _ := strings.Cut(string(out), "VmHWM:")
		if _, scanErr := fmt.Sscan(rest, &peak); err != nil || scanErr != nil {
			t.Fatalf("%s: %v, %v\n%s", job, err, scanErr, out)
		}
		t.Logf("%s: %d MB", job, peak>>10)
		if peak > maxPeak {
			t.Errorf("%s: the process used %d MB", job, peak>>10)
		}
	}
}

// receiveAlone receives one pack and prints the peak memory of this process.
func receiveAlone(t *testing.T, job, dir string) {
	q := testenv.Must(OpenQuarantine(filepath.Join(dir, job)))(t)
	q.Format = testFormat
	s := filepath.Join(dir, "store")
	var err error
	switch job {
	case "large":
		testenv.Must(0, MakeBare(s, testFormat))(t)
		writeLargePack(t, q, plumbing.BlobObject, int64(largeBlob), randomBytes())
		if err = q.Index(t.Context(), packDefaults(t), Progress{}); err == nil {
			err = q.Release(s)
		}
	case "thin":
		m := &packMaker{}
		steps := []string{insertion("more")}
		for offset := 0; offset < largeBlob; offset += 1 << 23 {
			steps = append(steps, copied(offset, 1<<23))
		}
		m.ref(largeBlobHash(t), delta(largeBlob, largeBlob+4, steps...))
		testenv.Must(0, os.WriteFile(q.packPath(), m.done(), 0o644))(t)
		err = q.Unpack(t.Context(), s, packDefaults(t), Progress{})
	case "bomb":
		writeLargePack(t, q, plumbing.BlobObject, 1<<30, zeros{})
		err = mustBeQuota(q.Index(t.Context(), packDefaults(t), Progress{}))
	case "bomb of a delta":
		m := &packMaker{}
		m.ofs(m.blob(strings.Repeat("x", 1<<20)), delta(1<<20, 1<<29, strings.Repeat(copied(0, 1<<20), 1<<9)))
		m.ofs(m.blob("x"), delta(1, 1<<30, copied(0, 1)))
		testenv.Must(0, os.WriteFile(q.packPath(), m.done(), 0o644))(t)
		err = mustBeQuota(q.Unpack(t.Context(), s, packDefaults(t), Progress{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	status := testenv.Must(os.ReadFile("/proc/self/status"))(t)
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	fmt.Println("VmHWM:", peak)
}

func mustBeQuota(err error) error {
	if events.ClassOf(err) == events.ClassQuota {
		return nil
	}
	return fmt.Errorf("not refused as too large: %v", err)
}

// randomBytes returns incompressible content.
func randomBytes() io.Reader { return rand.NewChaCha8([32]byte{}) }

func largeBlobHash(t *testing.T) ID {
	hasher := testFormat.NewHasher(plumbing.BlobObject, int64(largeBlob))
	testenv.Must(io.CopyN(hasher, randomBytes(), int64(largeBlob)))(t)
	return hasher.ID()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// writeLargePack streams a pack of one object to the quarantine.
func writeLargePack(t *testing.T, q Quarantine, kind plumbing.ObjectType, size int64, content io.Reader) {
	t.Helper()
	file := testenv.Must(os.Create(q.packPath()))(t)
	defer file.Close()
	sum := testFormat.NewSum()
	out := bufio.NewWriter(io.MultiWriter(file, sum))
	testenv.Must(out.Write(binary.BigEndian.AppendUint32(append([]byte{}, packMagic...), 1)))(t)
	testenv.Must(out.Write(appendObjectHeader(nil, kind, size)))(t)
	level := zlib.BestSpeed
	if _, ok := content.(zeros); !ok {
		level = zlib.NoCompression
	}
	z := testenv.Must(zlib.NewWriterLevel(out, level))(t)
	testenv.Must(io.CopyN(z, content, size))(t)
	testenv.Must(0, errors.Join(z.Close(), out.Flush()))(t)
	testenv.Must(file.Write(sum.Sum(nil)))(t)
}
