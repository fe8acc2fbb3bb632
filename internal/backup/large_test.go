package backup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// writeLarge writes a document of n repositories, each with a watch and a state.
func writeLarge(t *testing.T, n int) *os.File {
	t.Helper()
	file := must(os.Create(filepath.Join(t.TempDir(), "export")))(t)
	t.Cleanup(func() { _ = file.Close() })
	out := bufio.NewWriter(file)
	fmt.Fprintln(out, `{"lockstep_export":1,"time":"2026-11-23T10:00:00Z"}`)
	for i := range n {
		repo := fmt.Sprintf("acme/repo-%06d", i)
		fmt.Fprintf(out, `{"repo":%q,"watches":[{"app":"docs","repo":%q,"url":"https://git.example.com/%s.git"}],"state":{"repo":%q,"head:refs/heads/main":%q,"given:refs/heads/main:docs":%q}}`+"\n",
			repo, repo, repo, repo, newer, newer)
	}
	fmt.Fprintf(out, `{"end":true,"repos":%d,"watches":%d,"tokens":0}`+"\n", n, n)
	must(0, out.Flush())(t)
	must(file.Seek(0, io.SeekStart))(t)
	return file
}

// peak runs fn and returns by how many bytes the heap grew meanwhile.
func peak(fn func()) (bytes uint64) {
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	debug.FreeOSMemory()
	heap := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := heap()
	done := make(chan struct{})
	var sampling sync.WaitGroup
	sampling.Go(func() {
		for tick := time.NewTicker(time.Millisecond); ; {
			bytes = max(bytes, heap())
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	fn()
	close(done)
	sampling.Wait()
	return bytes - min(bytes, before)
}

// TestLargeDocumentsTakeLittleMemory is not parallel, because it measures the heap of the process.
func TestLargeDocumentsTakeLittleMemory(t *testing.T) {
	testenv.Long(t)
	client := redistest.StartReal(t).Client()
	n := testenv.Soak(5_000, 100_000)
	document := writeLarge(t, n)
	begin := time.Now()
	imported := peak(func() {
		must(0, errorOf(Check(document)))(t)
		must(document.Seek(0, io.SeekStart))(t)
		if s := must(Import(t.Context(), single(client), document, ImportConfig{}))(t); s.Watches != n || s.States != n {
			t.Errorf("%+v, want %d watches and states", s, n)
		}
	})
	took := time.Since(begin)
	begin = time.Now()
	exported := peak(func() {
		if counts := must(Export(t.Context(), single(client), "", io.Discard))(t); counts.Watches != n || counts.Repos != n {
			t.Errorf("%+v, want %d watches", counts, n)
		}
	})
	t.Logf("%d watches: import in %v with %d KiB, export in %v with %d KiB", n, took.Round(time.Millisecond), imported>>10, time.Since(begin).Round(time.Millisecond), exported>>10)
	if limit := uint64(16 << 20); imported > limit || exported > limit {
		t.Errorf("import takes %d bytes and export %d, want at most %d for any number of repositories", imported, exported, limit)
	}
}
