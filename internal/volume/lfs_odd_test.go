package volume

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func TestLFSRequestsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	files := map[string]string{".gitattributes": lfsAttributes}
	for i := range 30 {
		files[fmt.Sprint(i, ".bin")] = server.Put(fmt.Sprint("object ", i))
	}
	w.create(files)
	for _, places := range []int{1, 3} {
		limiter := &requestLog{places: make(chan struct{}, places)}
		req := w.requestLFS(allLFS)
		req.Repo, req.Limiter = repoPath(t, fmt.Sprint("acme/widgets-", places)), limiter
		testenv.Must(w.volume.Sync(t.Context(), req))(t)
		host := strings.TrimPrefix(strings.TrimSuffix(w.git.URL(widgets), "/acme/widgets.git"), "http://")
		if n := limiter.hosts[host]; len(limiter.hosts) != 1 || n != 33 || limiter.open != 0 || limiter.most > places {
			t.Errorf("%v requests, %d at most, %d still open; want 33 with at most %d", limiter.hosts, limiter.most, limiter.open, places)
		}
	}

	server.Set(gitserver.LFSHooks{Get: func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}})
	w.push(map[string]string{"1.bin": server.Put("limited")})
	limiter := &requestLog{}
	req := w.requestLFS(allLFS)
	req.Limiter = limiter
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	isLimited := slices.ContainsFunc(limiter.answers, func(a wire.Answer) bool {
		return a.Status == http.StatusTooManyRequests && a.Header.Get("Retry-After") == "7" && events.ClassOf(a.Err) == events.ClassBusy
	})
	if events.RetryAfter(err) != 7*time.Second || !isLimited {
		t.Errorf("retry after %v, answers %+v", events.RetryAfter(err), limiter.answers)
	}
}

func TestOddLFSFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	pointer, empty := server.Put("content"), "version https://git-lfs.github.com/spec/v1\noid sha256:"+strings.Repeat("ab", 32)+"\nsize 0\n"
	extension := strings.Replace(pointer, "oid", "ext-0-foo sha256:"+strings.Repeat("ab", 32)+"\noid", 1)
	want := map[string]string{".gitattributes": lfsAttributes}
	check := func(edit gitserver.Edit, downloads int, changes map[string]string) {
		t.Helper()
		commit := w.commit(gitserver.Main, edit)
		maps.Copy(want, changes)
		maps.DeleteFunc(want, func(_, content string) bool { return content == "deleted" })
		server.Requests()
		w.syncLFS(allLFS)
		w.mustRead(widgets, want)
		if _, gets := server.Requests(); len(gets) != downloads {
			t.Errorf("%d downloads, want %d", len(gets), downloads)
		}
		for line := range strings.Lines(w.gitIn(widgets, "status", "--porcelain")) {
			if !strings.Contains(line, "empty.bin") { // git takes the size 0 in an index as unknown; so after git lfs pull
				t.Errorf("git status: %s", line)
			}
		}
		w.mustVerify()
		if got := w.published(); got != commit {
			t.Errorf("published %s", got)
		}
	}
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	check(gitserver.Edit{Write: map[string]string{".gitattributes": lfsAttributes, "a.bin": pointer}}, 1, map[string]string{"a.bin": "content"})
	// Renamed, copied, with another mode: nothing is fetched.
	check(gitserver.Edit{Delete: []string{"a.bin"}, Write: map[string]string{"b/c/d.bin": pointer, "e.bin": pointer}, Exec: map[string]string{"x.bin": pointer}}, 0,
		map[string]string{"a.bin": "deleted", "b/c/d.bin": "content", "e.bin": "content", "x.bin": "content"})
	// A link with a pointer as its target, a folder with the name of a file before, an empty object, extensions.
	check(gitserver.Edit{Delete: []string{"e.bin"}, Link: map[string]string{"link.bin": "b/c/d.bin"},
		Write: map[string]string{"e.bin/f.bin": pointer, "empty.bin": empty, "ext.bin": extension, "none.bin": ""}}, 0,
		map[string]string{"e.bin": "deleted", "link.bin": "→ b/c/d.bin", "e.bin/f.bin": "content", "empty.bin": "", "ext.bin": extension, "none.bin": ""})
	// A pointer becomes an ordinary file and back; a name that is not UTF-8.
	check(gitserver.Edit{Write: map[string]string{"b/c/d.bin": "text", "\xff.bin": pointer}}, 0, map[string]string{"b/c/d.bin": "text", "\xff.bin": "content"})
	check(gitserver.Edit{Write: map[string]string{"b/c/d.bin": pointer}}, 0, map[string]string{"b/c/d.bin": "content"})
	// The attributes are a link, which Git ignores, or gone.
	check(gitserver.Edit{Delete: []string{".gitattributes"}, Link: map[string]string{".gitattributes": "b/c/d.bin"}}, 0, map[string]string{
		".gitattributes": "→ b/c/d.bin", "b/c/d.bin": pointer, "e.bin/f.bin": pointer, "x.bin": pointer, "\xff.bin": pointer, "empty.bin": empty})
	check(gitserver.Edit{Delete: []string{".gitattributes"}}, 0, map[string]string{".gitattributes": "deleted"})

	other := strings.Replace(pointer, "size 7", "size 8", 1)
	w.push(map[string]string{".gitattributes": lfsAttributes, "other.bin": other})
	_, err := w.trySyncLFS(allLFS)
	testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
}

func TestLFSFilesMoveWithTheirRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	commit := w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content")})
	w.syncLFS(allLFS)
	incoming := filepath.Join("lfs", "incoming", "1")
	testenv.Must(0, os.MkdirAll(filepath.Join(w.volume.folder(repoPath(t, widgets)).dir, incoming), 0o755))(t)
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if isThere(t, filepath.Join(w.volume.folder(repoPath(t, gadgets)).dir, incoming)) {
		t.Error("a download of a holder of the old path is at the new one")
	}
	w.mustRead(gadgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "content"})
	w.mustBeSound(gadgets, commit)
	server = w.git.LFS(gadgets)
	next := testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"b.txt": "more"}}))(t)
	testenv.Must(0, os.WriteFile(w.path(gadgets, "a.bin"), []byte("altered"), 0o644))(t) // also the file at the old path
	server.Put("content")
	req := w.requestAt(gadgets, "")
	req.LFS = allLFS
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	w.mustRead(gadgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "content", "b.txt": "more"})
	w.mustBeSound(gadgets, next)
}

func TestGCRemovesLFSDownloadsThatWereGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content")})
	server.Set(gitserver.LFSHooks{Get: func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		_, _ = w.Write([]byte("con"))
		return true
	}})
	_, err := w.trySyncLFS(allLFS)
	testenv.MustFail(t, err, events.ClassServer, events.Retryable)
	incoming := filepath.Join(w.volume.folder(repoPath(t, widgets)).lfs(), "incoming", "*", "*")
	if left := testenv.Must(filepath.Glob(incoming))(t); len(left) != 1 || w.volume.IsTidy(repoPath(t, widgets)) {
		t.Errorf("%q is left, tidy %v; want the download that broke off", left, w.volume.IsTidy(repoPath(t, widgets)))
	}
	testenv.Must(w.volume.GC(t.Context(), GCRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1)}))(t)
	if left := testenv.Must(filepath.Glob(incoming))(t); len(left) > 0 || !w.volume.IsTidy(repoPath(t, widgets)) {
		t.Errorf("%q is left, tidy %v", left, w.volume.IsTidy(repoPath(t, widgets)))
	}
}

func TestManyLFSObjects(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	w := newWorld(t)
	server := w.git.LFS(widgets)
	files := map[string]string{".gitattributes": lfsAttributes}
	want := maps.Clone(files)
	for i := range 2000 {
		path, content := fmt.Sprintf("%d/%d.bin", i%30, i), fmt.Sprint("object ", i)
		files[path], want[path] = server.Put(content), content
	}
	commit := w.create(files)
	w.syncLFS(allLFS)
	w.mustRead(widgets, want)
	w.mustBeSound(widgets, commit)
	w.mustVerify()
	if batches, gets := server.Requests(); len(batches) != 20 || slices.Max(batches) != 100 || len(gets) != 2000 {
		t.Errorf("%d batches of at most %d, and %d downloads", len(batches), slices.Max(batches), len(gets))
	}
}

// TestLFSAfterADamagedManifest damages the manifest of the published tree, which the next one is then not built from.
func TestLFSAfterADamagedManifest(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(w *world, server *gitserver.LFS) map[string]string{
		"a file": func(*world, *gitserver.LFS) map[string]string { return map[string]string{"b.txt": "2"} },
		"attributes": func(*world, *gitserver.LFS) map[string]string {
			return map[string]string{".gitattributes": lfsAttributes + "*.txt -text\n"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			server := w.git.LFS(widgets)
			w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content"), "b.txt": "1"})
			res := w.syncLFS(allLFS)
			manifest := checkout.GitDirOf(w.path(res.Tree)).Manifest()
			content := testenv.Must(os.ReadFile(manifest))(t)
			content[len(content)-1] ^= 1
			testenv.Must(0, os.WriteFile(manifest, content, 0o644))(t)
			commit := w.push(edit(w, server))
			if _, err := w.trySyncLFS(allLFS); err != nil {
				t.Fatal(err)
			}
			w.mustBeSound(widgets, commit)
			if got := readTree(t, w.path(widgets))["a.bin"]; got != "content" {
				t.Errorf("published %q instead of the content", got)
			}
		})
	}
}

// The new path has some objects already, of a push that was synced before the move.
func TestLFSFilesMoveToSyncedPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content")})
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{".gitattributes": lfsAttributes, "v.bin": server.Put("other")}})
	w.syncLFS(allLFS)
	req := w.request("v1")
	req.LFS = allLFS
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	w.rename(widgets, gadgets)
	w.git.LFS(gadgets).Put("content")
	req = w.requestAt(gadgets, "")
	req.LFS = allLFS
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustRead(gadgets+"@v1", map[string]string{".gitattributes": lfsAttributes, "v.bin": "other"})
	w.mustBeSound(gadgets+"@v1", v1)
	if objects := testenv.Must(disk.Glob(w.volume.folder(repoPath(t, gadgets)).lfs(), "objects/*/*/*"))(t); len(objects) != 2 {
		t.Errorf("objects %q, want 2", objects)
	}
}

// TestLFSObjectsGoWithTheirRepository removes or moves a repository. Another one at its path must not find its objects, which it
// might name without having access to them.
func TestLFSObjectsGoWithTheirRepository(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(w *world){
		"removed": func(w *world) {
			testenv.Must(w.volume.Remove(t.Context(), w.removal()))(t)
		},
		"moved": func(w *world) {
			w.rename(widgets, gadgets)
			testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
			w.mustRead(gadgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "secret"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pointer := w.git.LFS(widgets).Put("secret")
			w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": pointer})
			w.syncLFS(allLFS)
			if name == "removed" {
				testenv.Must(0, w.git.Delete(widgets))(t)
			}
			leave(w)
			if left := w.lfsObjects(); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
			w.create(map[string]string{".gitattributes": lfsAttributes, "b.bin": pointer, "c": "another repository"})
			w.git.LFS(widgets).Set(gitserver.LFSHooks{Batch: func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusForbidden)
				return true
			}})
			if _, err := w.trySyncLFS(allLFS); err == nil {
				t.Error("another repository has the object without its server")
			}
		})
	}
}

// TestMoveOfAnObjectWithAllLinks moves a repository with an object that cannot get another link.
func TestMoveOfAnObjectWithAllLinks(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	w := newWorld(t)
	commit := w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": w.git.LFS(widgets).Put("content")})
	w.syncLFS(allLFS)
	links := testenv.Must(os.MkdirTemp(w.volume.Root(), ".links-"))(t)
	for i := 0; ; i++ {
		err := os.Link(w.path(widgets, "a.bin"), filepath.Join(links, fmt.Sprint(i)))
		if errors.Is(err, unix.EMLINK) {
			break
		}
		if testenv.Must(0, err)(t); i > 70_000 {
			t.Skip("the file system has no limit of links like that of ext4")
		}
	}
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustRead(gadgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "content"})
	w.mustBeSound(gadgets, commit)
}
