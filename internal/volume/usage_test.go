package volume

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

func (w *world) gc(full bool) GCResult {
	w.t.Helper()
	return testenv.Must(w.volume.GC(w.t.Context(), GCRequest{Repo: repoPath(w.t, widgets), Fence: w.fence.Add(1), Full: full}))(w.t)
}

// noise returns random content, which does not compress.
func noise(t *testing.T, bytes int) string {
	t.Helper()
	b := make([]byte, bytes)
	testenv.Must(rand.Read(b))(t)
	return string(b)
}

func TestUsageCountsSharedFilesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"big": noise(t, 1<<20), "a": "1"})
	w.sync("")
	first := w.gc(true).Usage
	if first.Bytes < 2<<20 || first.Bytes > 3<<20 || first.Trees != 1 {
		t.Errorf("usage %+v, want a pack and a file of 1 MiB each", first)
	}
	w.push(map[string]string{"a": "2"})
	w.sync("")
	second := w.gc(true).Usage
	if grown := second.Bytes - first.Bytes; grown <= 0 || grown > 1<<19 || second.Trees != 2 {
		t.Errorf("a second tree that shares its file: usage %+v after %+v", second, first)
	}
	if second.Added != 0 || second.Measured.IsZero() {
		t.Errorf("usage %+v after it was measured", second)
	}
}

func TestGrowthIsEstimatedThenMeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.gc(true)
	repo := repoPath(t, widgets)
	w.push(map[string]string{"big": noise(t, 4<<20)})
	w.sync("")
	if u := w.volume.Usage(repo); u.Added < 8<<20 {
		t.Errorf("usage %+v, want 8 MiB or more added: a pack and a file", u)
	}
	if u := w.gc(false).Usage; u.Added != 0 || u.Bytes < 8<<20 {
		t.Errorf("usage %+v once measured", u)
	}
	before := w.volume.Usage(repo)
	w.sync("") // nothing new
	w.gc(false)
	if after := w.volume.Usage(repo); !after.Measured.Equal(before.Measured) {
		t.Error("it was measured again though nothing had changed")
	}
}

// TestGrowthExcludesNeighbours writes 20 MiB elsewhere on the file system during a sync.
func TestGrowthExcludesNeighbours(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := map[string]string{"big": noise(t, 1<<20)}
	for i := range 100 {
		files[fmt.Sprintf("folder%d/file", i)] = "x"
	}
	w.create(files)
	neighbour := filepath.Join(t.TempDir(), "neighbour")
	w.volume = w.open(w.volume.Root(), Config{Step: func(step string) {
		if step == "built" {
			file := testenv.Must(os.Create(neighbour))(t)
			defer file.Close()
			testenv.Must(file.WriteString(noise(t, 20<<20)))(t)
			testenv.Must(0, file.Sync())(t) // so that it takes space
		}
	}})
	w.sync("")
	u := w.volume.Usage(repoPath(t, widgets))
	estimate := u.Bytes + u.Added
	measured := w.gc(true).Usage.Bytes
	if low, high := measured*8/10, measured*12/10; estimate < low || estimate > high {
		t.Errorf("estimated %d bytes, measured %d", estimate, measured)
	}
}

func TestRepositoryOverLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.volume = w.open(w.volume.Root(), Config{MaxRepoBytes: 2 << 20})
	w.push(map[string]string{"big": noise(t, 3<<20)})

	for range 2 {
		_, err := w.trySync("")

		testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
		if !strings.Contains(err.Error(), "max-repo-bytes") || !strings.Contains(err.Error(), "repos gc") {
			t.Errorf("the error does not say what to do: %v", err)
		}
		w.mustBeSound(widgets, first)
	}
	if u := w.gc(true).Usage; u.Bytes > 1<<20 {
		t.Errorf("usage %+v: what was refused is kept", u)
	}
	fetched := w.git.Stats(widgets).UploadPacks
	w.volume = w.open(w.volume.Root(), Config{MaxRepoBytes: 1 << 10})
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	if w.git.Stats(widgets).UploadPacks != fetched {
		t.Error("it was fetched though it is too large already")
	}
	w.volume = w.open(w.volume.Root(), Config{MaxRepoBytes: 20 << 20})
	w.sync("")
}

// TestWrongGrowthEstimateIsRemeasured records an estimate that puts the repository over its limit.
func TestWrongGrowthEstimateIsRemeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.gc(true)
	f := w.volume.folder(repoPath(t, widgets))
	u := readCache[Usage](f.usage())
	u.Added = 1 << 40
	testenv.Must(0, f.writeUsage(u))(t)
	commit := w.push(map[string]string{"a": "2"})
	w.sync("")
	w.mustBeSound(widgets, commit)
	if u := readCache[Usage](f.usage()); u.Added >= 1<<40 {
		t.Errorf("usage %+v, want it measured", u)
	}
}

func TestNoFetchOnFullVolume(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  Config
		says string
	}{
		"too little free": {Config{MinFreeBytes: 1 << 60}, "min-free-bytes"},
		"too much taken":  {Config{MaxVolumeBytes: 1 << 20}, "max-volume-bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.create(map[string]string{"a": "1"})
			w.sync("")
			testenv.Must(0, w.volume.SetTotal(Total{Bytes: 2 << 20}))(t)
			w.volume = w.open(w.volume.Root(), tc.cfg)
			w.sync("") // needs no additional space
			w.push(map[string]string{"a": "2"})
			fetched := w.git.Stats(widgets).UploadPacks

			_, err := w.trySync("")

			testenv.MustFail(t, err, events.ClassQuota, events.Retryable)
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the error does not name the setting: %v", err)
			}
			if w.git.Stats(widgets).UploadPacks != fetched {
				t.Error("it was fetched all the same")
			}
			w.mustBeSound(widgets, first)
		})
	}
}

func TestDamagedUsageFileIsRewritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, os.WriteFile(f.usage(), []byte("{"), 0o644))(t)
	testenv.Must(0, os.WriteFile(filepath.Join(w.volume.Root(), adminDir, "usage"), []byte("{"), 0o644))(t)
	if total := w.volume.Total(); total != (Total{}) {
		t.Errorf("total %+v", total)
	}
	w.push(map[string]string{"a": "2"})
	w.sync("")
	if u := readCache[Usage](f.usage()); u.Bytes == 0 || u.Measured.IsZero() {
		t.Errorf("usage %+v", u)
	}
}

func TestUsageIsReadWhileItIsWritten(t *testing.T) {
	t.Parallel()
	f := folder{dir: t.TempDir()}
	const bytes = 1 << 40
	testenv.Must(0, f.writeUsage(Usage{Bytes: bytes}))(t)
	written := make(chan error)
	go func() {
		var err error
		for i := 0; i < 300 && err == nil; i++ {
			err = f.writeUsage(Usage{Bytes: bytes})
		}
		written <- err
	}()
	for {
		select {
		case err := <-written:
			testenv.Must(0, err)(t)
			return
		default:
			if u := readCache[Usage](f.usage()); u.Bytes != bytes {
				testenv.Must(0, <-written)(t)
				t.Fatalf("read %+v", u)
			}
		}
	}
}

func TestBytesText(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1KiB", 3 << 19: "1.5MiB", 512 << 20: "512MiB", 32 << 30: "32GiB", 1 << 60: "1EiB"} {
		if got := BytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
