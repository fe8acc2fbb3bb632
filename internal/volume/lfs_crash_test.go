package volume

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestKilledAtEveryStepWithLFS kills a process at each step of a sync that fetches an LFS object.
func TestKilledAtEveryStepWithLFS(t *testing.T) {
	t.Parallel()
	for _, step := range testenv.Form([]string{"lfs", "checked out"}, slices.Concat([]string{"lfs"}, steps)) {
		for _, first := range testenv.Form([]bool{false}, []bool{true, false}) {
			if first && step == "taken" {
				continue // nothing is prepared
			}
			t.Run(fmt.Sprintf("%s/first=%v", step, first), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				server := w.git.LFS(widgets)
				want := map[string]string{".gitattributes": lfsAttributes, "a.bin": "old", "same.bin": "same"}
				commit := w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("old"), "same.bin": server.Put("same")})
				if !first {
					w.syncLFS(allLFS)
					w.prepare()
					commit, want["a.bin"] = w.push(map[string]string{"a.bin": server.Put("new")}), "new"
				}
				before := w.published()

				cmd := w.dying(step, w.git.URL(widgets))
				cmd.Env = append(cmd.Env, "LOCKSTEP_TEST_DIE_LFS="+allLFS.String())
				w.mustBeKilled(cmd, step)

				if after := w.published(); after != "" {
					w.mustBeSound(widgets, after)
					if after == before {
						w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "old", "same.bin": "same"})
					}
				}
				server.Requests()
				w.syncLFS(allLFS)
				w.mustRead(widgets, want)
				w.mustBeSound(widgets, commit)
				w.mustVerify()
				if _, gets := server.Requests(); len(gets) > 0 && !slices.Contains(steps[:slices.Index(steps, "taken")], step) {
					t.Errorf("downloaded %q again", gets)
				}
				mustBeTidy(t, w)
			})
		}
	}
}

// TestKilledDuringAnLFSDownload kills a process in the middle of a download, which the next one continues.
func TestKilledDuringAnLFSDownload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	content := strings.Repeat("0123456789", 200_000)
	_, oid := gitserver.LFSPointer(content)
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put(content)})
	half := len(content) / 2
	var once sync.Once
	sent := make(chan struct{})
	server.Set(gitserver.LFSHooks{Get: func(w http.ResponseWriter, r *http.Request, _ string) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write([]byte(content[:half]))
		_ = http.NewResponseController(w).Flush()
		once.Do(func() { close(sent) })
		<-r.Context().Done()
		return true
	}})
	cmd := w.dying("never", w.git.URL(widgets))
	cmd.Env = append(cmd.Env, "LOCKSTEP_TEST_DIE_LFS="+allLFS.String())
	testenv.Must(0, cmd.Start())(t)
	<-sent
	partial := filepath.Join(w.volume.folder(repoPath(t, widgets)).lfs(), "incoming", "*", oid)
	for ctx := testenv.Context(t); sizeOf(testenv.Must(filepath.Glob(partial))(t)) != int64(half); time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("half of the object is not on disk")
		}
	}
	testenv.Must(0, cmd.Process.Kill())(t)
	_ = cmd.Wait()
	if got := w.published(); got != "" {
		t.Errorf("published %s", got)
	}

	server.Set(gitserver.LFSHooks{})
	server.Requests()
	w.syncLFS(allLFS)
	if _, gets := server.Requests(); !slices.Equal(gets, []string{fmt.Sprintf("%s bytes=%d-", oid, half)}) {
		t.Errorf("downloads %q, want the second half", gets)
	}
	w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": content})
	w.mustVerify()
	if left := testenv.Must(filepath.Glob(partial))(t); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}

// TestBrokenLFSDownloadsDoNotPileUp has a server that breaks off each download.
func TestBrokenLFSDownloadsDoNotPileUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	content := strings.Repeat("0123456789", 100_000)
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put(content)})
	server.Set(gitserver.LFSHooks{Get: func(w http.ResponseWriter, r *http.Request, _ string) bool {
		w.Header().Set("Content-Length", "1000000")
		if r.Header.Get("Range") == "" {
			_, _ = w.Write([]byte(content[:900_000]))
		}
		panic(http.ErrAbortHandler)
	}})
	for range 3 {
		if _, err := w.trySyncLFS(allLFS); err == nil {
			t.Fatal("synced without the object")
		}
	}
	left := testenv.Must(filepath.Glob(filepath.Join(w.volume.folder(repoPath(t, widgets)).lfs(), "incoming", "*", "*")))(t)
	if bytes := sizeOf(left); bytes > 1_000_000 {
		t.Errorf("%d bytes in %q", bytes, left)
	}
}
