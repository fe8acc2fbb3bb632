package object

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newLargeRepo creates a repository of 4000 files with several versions.
func newLargeRepo(b *testing.B) (h gitRepo, first string) {
	h = gitRepo{b.TempDir(), b, []string{"dir1/file1", "dir2/file2"}}
	h.git("", "init", "-q", "--bare", "-b", "main")
	random := rand.New(rand.NewPCG(3, 4))
	files := make([]string, 4000)
	var script strings.Builder
	for version := range 5 {
		fmt.Fprintf(&script, "commit refs/heads/main\ncommitter A <a@b> %d +0000\ndata 1\nx\n", 1_700_000_000+version)
		for i := range files {
			if version > 0 && (i+version)%4 > 0 {
				continue
			}
			for range 40 {
				files[i] += fmt.Sprintf("%d: line %d of file %d\n", random.Uint64(), random.Uint32(), i)
			}
			fmt.Fprintf(&script, "M 100644 inline dir%d/file%d\ndata %d\n%s\n", i%80, i, len(files[i]), files[i])
		}
	}
	h.git(script.String(), "fast-import", "--quiet")
	return h, h.git("", "rev-parse", "main~1")
}

// benchmarkPack measures receive, without writing the fetched pack.
func benchmarkPack(b *testing.B, pack []byte, receive func(q Quarantine) error) {
	dir := b.TempDir()
	b.SetBytes(int64(len(pack)))
	for b.Loop() {
		b.StopTimer()
		q, err := OpenQuarantine(filepath.Join(dir, "quarantine"))
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(q.packPath(), pack, 0o644); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := receive(q); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIndexPack(b *testing.B) {
	h, _ := newLargeRepo(b)
	pack := h.packed("", "--all", "--delta-base-offset", "--window=10")
	benchmarkPack(b, pack, func(q Quarantine) error { return q.Index(b.Context(), packDefaults(b), Progress{}) })
}

// BenchmarkUnpack unpacks the thin packs of a push of many files, which stays a pack, and of one of few.
func BenchmarkUnpack(b *testing.B) {
	h, first := newLargeRepo(b)
	s := newStore(b)
	q := received(b, h.packed(first+"\n", "--delta-base-offset", "--window=10"))
	if err := q.Index(b.Context(), packDefaults(b), Progress{}); err != nil {
		b.Fatal(err)
	}
	if err := q.Release(s); err != nil {
		b.Fatal(err)
	}
	many := h.git("", "rev-parse", "main")
	few := h.push(h.git("", "rev-parse", first), 200)
	for name, commit := range map[string]string{"many": many, "few": few} {
		b.Run(name, func(b *testing.B) {
			pack := h.packed(commit+"\n^"+first+"\n", "--delta-base-offset", "--window=10")
			benchmarkPack(b, pack, func(q Quarantine) error { return q.Unpack(b.Context(), s, packDefaults(b), Progress{}) })
		})
	}
}
