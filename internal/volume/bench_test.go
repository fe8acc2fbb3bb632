package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
)

// BenchmarkSyncOneFile measures the sync of a push that changes one file. Creating the commit is not
// measured.
func BenchmarkSyncOneFile(b *testing.B) {
	for _, size := range []int{60, 5000} {
		b.Run(fmt.Sprintf("files=%d", size), func(b *testing.B) {
			server, err := gitserver.Start(b.TempDir())
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
				if _, err := server.Commit(b.Context(), widgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"dir1/file1": fmt.Sprint(n)}}); err != nil {
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

// BenchmarkLinks measures how long it takes to resolve a repository's names, next to other repositories of the owner.
func BenchmarkLinks(b *testing.B) {
	for _, siblings := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("siblings=%d", siblings), func(b *testing.B) {
			server, err := gitserver.Start(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer server.Close()
			v, err := OpenVolume(b.TempDir(), Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer v.Close()
			if _, err := server.Create(b.Context(), widgets, map[string]string{"a": "1"}); err != nil {
				b.Fatal(err)
			}
			repo, err := events.ParseRepoPath(widgets)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := v.Sync(b.Context(), SyncRequest{Repo: repo, URL: server.URL(widgets), Fence: 1}); err != nil {
				b.Fatal(err)
			}
			for i := range siblings {
				if err := os.Symlink("elsewhere", filepath.Join(v.Root(), "acme", fmt.Sprintf("repo%d", i))); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if links, err := v.links(v.folder(repo), binding{Repo: repo}); err != nil || len(links) != 1 {
					b.Fatal(links, err)
				}
			}
		})
	}
}
