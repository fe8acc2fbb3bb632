package gitrepo

import (
	"fmt"
	"testing"

	"lockstep/events"
	"lockstep/internal/gittest"
)

// BenchmarkSyncOneFile measures a push of one file to its publication. The commit itself is made
// outside the clock.
func BenchmarkSyncOneFile(b *testing.B) {
	for _, size := range []int{60, 5000} {
		b.Run(fmt.Sprintf("files=%d", size), func(b *testing.B) {
			server, err := gittest.Start(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer server.Close()
			v, err := OpenVolume(b.TempDir(), Config{Grace: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer v.Close()
			files := map[string]string{}
			for i := range size {
				files[fmt.Sprintf("dir%d/file%d", i%100, i)] = fmt.Sprintf("content of file %d\n", i)
			}
			if _, err := server.Create(b.Context(), widgets, files); err != nil {
				b.Fatal(err)
			}
			repo, err := events.ParseRepoPath(widgets)
			if err != nil {
				b.Fatal(err)
			}
			req := SyncRequest{Repo: repo, URL: server.URL(widgets), Fence: 1}
			if _, err := v.Sync(b.Context(), req); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				if _, err := server.Commit(b.Context(), widgets, gittest.Main, gittest.Edit{Write: map[string]string{"dir1/file1": fmt.Sprint(n)}}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				req.Fence++
				if _, err := v.Sync(b.Context(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
