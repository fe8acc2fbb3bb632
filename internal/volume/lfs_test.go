package volume

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/lfs"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

const lfsAttributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n"

var allLFS = lfs.Selection{{}}

func (w *world) requestLFS(selection lfs.Selection) SyncRequest {
	req := w.request(gitserver.Main)
	req.LFS = selection
	return req
}

func (w *world) trySyncLFS(selection lfs.Selection) (SyncResult, error) {
	w.t.Helper()
	return w.volume.Sync(w.t.Context(), w.requestLFS(selection))
}

func (w *world) syncLFS(selection lfs.Selection) SyncResult {
	w.t.Helper()
	return testenv.Must(w.trySyncLFS(selection))(w.t)
}

// lfsObjects lists the OIDs in the repository's LFS store.
func (w *world) lfsObjects() (oids []string) {
	w.t.Helper()
	paths := testenv.Must(filepath.Glob(filepath.Join(w.volume.folder(repoPath(w.t, widgets)).lfs(), "objects", "*", "*", "*")))(w.t)
	for _, path := range paths {
		oids = append(oids, filepath.Base(path))
	}
	return oids
}

func TestLFSFilesHaveTheirContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	pointer := server.Put("large content")
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": pointer, "dir/copy.bin": pointer, "b.txt": pointer, "c.bin": "no pointer"})
	w.commit(gitserver.Main, gitserver.Edit{Exec: map[string]string{"x.bin": pointer}})
	commit := w.git.Head(widgets, "refs/heads/main")

	w.syncLFS(allLFS)
	w.mustRead(widgets, map[string]string{
		".gitattributes": lfsAttributes, "a.bin": "large content", "dir/copy.bin": "large content", "x.bin": "large content", "b.txt": pointer, "c.bin": "no pointer",
	})
	w.mustBeSound(widgets, commit)
	w.mustVerify()
	if info := testenv.Must(os.Stat(w.path(widgets, "x.bin")))(t); info.Mode()&0o100 == 0 {
		t.Errorf("x.bin has mode %v, want an executable", info.Mode())
	}
	_, gets := server.Requests()
	if len(gets) != 1 {
		t.Errorf("downloaded %q, want the object once", gets)
	}
	a, b := testenv.Must(os.Stat(w.path(widgets, "a.bin")))(t), testenv.Must(os.Stat(w.path(widgets, "dir/copy.bin")))(t)
	if !os.SameFile(a, b) {
		t.Error("two files with one object are two inodes, want one")
	}
}

func TestAPushOfOnePointerFetchesOneObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	files := map[string]string{".gitattributes": lfsAttributes}
	want := map[string]string{".gitattributes": lfsAttributes}
	for i := range 250 {
		name, content := fmt.Sprintf("%03d.bin", i), fmt.Sprint("object ", i)
		files[name], want[name] = server.Put(content), content
	}
	w.create(files)
	w.syncLFS(allLFS)
	batches, gets := server.Requests()
	slices.Sort(batches)
	if !slices.Equal(batches, []int{50, 100, 100}) || len(gets) != 250 {
		t.Errorf("batches of %v and %d downloads, want 100, 100, 50 and 250", batches, len(gets))
	}
	for _, prepare := range []bool{false, true} {
		if prepare {
			testenv.Must(w.volume.Prepare(t.Context(), PrepareRequest{Repo: repoPath(t, widgets), Ref: testenv.Must(events.ParseRef(gitserver.Main))(t), Fence: w.fence.Add(1)}))(t)
		}
		content := fmt.Sprint("changed", prepare)
		want["007.bin"] = content
		commit := w.push(map[string]string{"007.bin": server.Put(content)})
		w.syncLFS(allLFS)
		batches, gets = server.Requests()
		if !slices.Equal(batches, []int{1}) || len(gets) != 1 {
			t.Errorf("prepared %v: batches of %v and %d downloads, want one object", prepare, batches, len(gets))
		}
		w.mustRead(widgets, want)
		w.mustBeSound(widgets, commit)
	}
	w.push(map[string]string{"readme.txt": "no LFS"})
	w.syncLFS(allLFS)
	if batches, gets = server.Requests(); len(batches)+len(gets) > 0 {
		t.Errorf("a push without pointers asked the LFS server: %v, %v", batches, gets)
	}
	w.mustVerify()
}

func TestLFSIsPublishedAsSelected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	a, b, c := server.Put("object a"), server.Put("object b"), server.Put("object c")
	commit := w.create(map[string]string{".gitattributes": lfsAttributes, "art/a.bin": a, "b.bin": b, "c.bin": c})
	for _, step := range []struct {
		selection lfs.Selection
		a, b, c   string
	}{
		{nil, a, b, c},
		{lfs.Selection{{Include: []string{"art/**"}}}, "object a", b, c},
		{allLFS, "object a", "object b", "object c"},
		{lfs.Selection{{Exclude: []string{"*.bin"}}}, "object a", b, c},
		{lfs.Selection{{Include: []string{"c.bin"}}, {Include: []string{"b.bin"}}}, a, "object b", "object c"},
		{nil, a, b, c},
	} {
		res := w.syncLFS(step.selection)
		w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "art/a.bin": step.a, "b.bin": step.b, "c.bin": step.c})
		w.mustBeSound(widgets, commit)
		w.mustVerify()
		if again := w.syncLFS(step.selection); again.Published || again.Tree != res.Tree {
			t.Errorf("%v: published again without a change", step.selection)
		}
		published, _, err := w.volume.Published(repoPath(t, widgets))
		if got := published.LFS[testenv.Must(events.ParseRef(gitserver.Main))(t)]; err != nil || got.String() != step.selection.String() {
			t.Errorf("published with %v (%v), want %v", got, err, step.selection)
		}
	}
}

func TestAttributesDecideWhatIsInLFS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pointer := w.git.LFS(widgets).Put("content")
	w.create(map[string]string{".gitattributes": "*.bin filter=lfs\n", "a.bin": pointer, "b.txt": pointer, "dir/a.bin": pointer})
	w.syncLFS(allLFS)
	for _, step := range []struct {
		edit           gitserver.Edit
		a, b, dirA     string
		top, attribute string
	}{
		{gitserver.Edit{Write: map[string]string{"dir/.gitattributes": "*.bin !filter\n"}}, "content", pointer, pointer, "*.bin filter=lfs\n", "*.bin !filter\n"},
		{gitserver.Edit{Write: map[string]string{".gitattributes": "[attr]big filter=lfs -text\nb.* big\n", "dir/.gitattributes": "a.bin big\n"}},
			pointer, "content", "content", "[attr]big filter=lfs -text\nb.* big\n", "a.bin big\n"},
	} {
		commit := w.commit(gitserver.Main, step.edit)
		w.syncLFS(allLFS)
		w.mustRead(widgets, map[string]string{".gitattributes": step.top, "dir/.gitattributes": step.attribute, "a.bin": step.a, "b.txt": step.b, "dir/a.bin": step.dirA})
		w.mustBeSound(widgets, commit)
		w.mustVerify()
	}
}

func TestAMissingLFSObjectIsNamedAndTheTreeStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("old")})
	w.syncLFS(allLFS)
	pointer, oid := gitserver.LFSPointer("new")
	w.push(map[string]string{"a.bin": pointer})
	_, err := w.trySyncLFS(allLFS)
	testenv.MustFail(t, err, events.ClassNotFound, events.Permanent)
	if !strings.Contains(err.Error(), oid) || !strings.Contains(err.Error(), `"a.bin"`) {
		t.Errorf("%v does not name the object and its path", err)
	}
	w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "old"})
	server.Put("new")
	w.syncLFS(allLFS)
	w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "new"})
}

func TestLFSAnswersThatAreRefused(t *testing.T) {
	t.Parallel()
	object := func(change func(o map[string]any)) gitserver.LFSHooks {
		return gitserver.LFSHooks{Answer: func(_ map[string]any, objects []map[string]any) {
			for _, o := range objects {
				change(o)
			}
		}}
	}
	download := func(o map[string]any) map[string]any {
		return o["actions"].(map[string]any)["download"].(map[string]any)
	}
	send := func(content string) gitserver.LFSHooks {
		return gitserver.LFSHooks{Get: func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			_, _ = w.Write([]byte(content))
			return true
		}}
	}
	status := func(code int) gitserver.LFSHooks {
		return gitserver.LFSHooks{Batch: func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }}
	}
	for name, tc := range map[string]struct {
		hooks       gitserver.LFSHooks
		class       events.Class
		disposition events.Disposition
	}{
		"another transfer":  {gitserver.LFSHooks{Answer: func(r map[string]any, _ []map[string]any) { r["transfer"] = "tus" }}, events.ClassConfig, events.Permanent},
		"another hash":      {gitserver.LFSHooks{Answer: func(r map[string]any, _ []map[string]any) { r["hash_algo"] = "sha512" }}, events.ClassConfig, events.Permanent},
		"removed":           {object(func(o map[string]any) { o["error"] = map[string]any{"code": 410} }), events.ClassNotFound, events.Permanent},
		"failed":            {object(func(o map[string]any) { o["error"] = map[string]any{"code": 500} }), events.ClassServer, events.Retryable},
		"no action":         {object(func(o map[string]any) { delete(o, "actions") }), events.ClassNotFound, events.Permanent},
		"no objects":        {gitserver.LFSHooks{Answer: func(r map[string]any, _ []map[string]any) { delete(r, "objects") }}, events.ClassNotFound, events.Permanent},
		"a file":            {object(func(o map[string]any) { download(o)["href"] = "file:///etc/passwd" }), events.ClassConfig, events.Permanent},
		"a password":        {object(func(o map[string]any) { download(o)["href"] = "http://a:b@127.0.0.1/x" }), events.ClassConfig, events.Permanent},
		"a private address": {object(func(o map[string]any) { download(o)["href"] = "http://10.0.0.1/x" }), events.ClassConfig, events.Permanent},
		"cloud metadata":    {object(func(o map[string]any) { download(o)["href"] = "http://169.254.169.254/latest" }), events.ClassConfig, events.Permanent},
		"always expired":    {object(func(o map[string]any) { download(o)["expires_in"] = -10 }), events.ClassServer, events.Retryable},
		"other content":     {send("CONTENT"), events.ClassServer, events.Retryable},
		"longer":            {send("content and more"), events.ClassServer, events.Retryable},
		"shorter":           {send("con"), events.ClassServer, events.Retryable},
		"not JSON":          {gitserver.LFSHooks{Batch: func(w http.ResponseWriter, _ *http.Request) bool { _, _ = w.Write([]byte("<html>")); return true }}, events.ClassServer, events.Retryable},
		"no server":         {status(404), events.ClassNotFound, events.Permanent},
		"unauthorized":      {status(401), events.ClassAuth, events.Permanent},
		"overloaded":        {status(500), events.ClassServer, events.Retryable},
		"limited":           {status(429), events.ClassBusy, events.Retryable},
		"an endless answer": {gitserver.LFSHooks{Batch: func(w http.ResponseWriter, r *http.Request) bool {
			_, _ = w.Write([]byte(`{"objects":[{"oid":"`))
			for line := make([]byte, 1<<16); r.Context().Err() == nil; {
				for i := range line {
					line[i] = 'a'
				}
				if _, err := w.Write(line); err != nil {
					break
				}
			}
			return true
		}}, events.ClassQuota, events.Permanent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			server := w.git.LFS(widgets)
			w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content")})
			server.Set(tc.hooks)
			_, err := w.trySyncLFS(allLFS)
			testenv.MustFail(t, err, tc.class, tc.disposition)
			server.Set(gitserver.LFSHooks{})
			w.syncLFS(allLFS)
			w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "content"})
		})
	}
}

func TestALargeBatchIsHalved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	files := map[string]string{".gitattributes": lfsAttributes}
	for i := range 60 {
		files[fmt.Sprint(i, ".bin")] = server.Put(fmt.Sprint("object ", i))
	}
	server.Set(gitserver.LFSHooks{MaxBatch: 20})
	w.create(files)
	w.syncLFS(allLFS)
	if batches, gets := server.Requests(); len(batches) != 6 || batches[0] != 60 || batches[1] != 30 || len(gets) != 60 {
		t.Errorf("batches %v and %d downloads", batches, len(gets))
	}
}

func TestAnInterruptedLFSDownloadContinues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	content := strings.Repeat("0123456789", 100_000)
	_, oid := gitserver.LFSPointer(content)
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put(content)})
	breakOff := func(w http.ResponseWriter, r *http.Request, _ string) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		if r.Header.Get("Range") != "" {
			return false // the next attempt
		}
		_, _ = w.Write([]byte(content[:600_000]))
		panic(http.ErrAbortHandler)
	}
	fail := func(w http.ResponseWriter, r *http.Request, oid string) bool {
		if r.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return breakOff(w, r, oid)
	}
	server.Set(gitserver.LFSHooks{Get: fail})
	_, err := w.trySyncLFS(allLFS)
	testenv.MustFail(t, err, events.ClassServer, events.Retryable)
	server.Requests()

	server.Set(gitserver.LFSHooks{}) // another process
	w.syncLFS(allLFS)
	if _, gets := server.Requests(); !slices.Equal(gets, []string{oid + " bytes=600000-"}) {
		t.Errorf("downloads %q, want the rest only", gets)
	}
	w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": content})
	if left := testenv.Must(filepath.Glob(filepath.Join(w.volume.folder(repoPath(t, widgets)).lfs(), "incoming", "*")))(t); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}

func TestAnExpiredLFSActionIsRenewed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content")})
	expires := []map[string]any{{"expires_in": -1}, {"expires_at": "2001-01-01T00:00:00Z"}, {"expires_in": 3600, "expires_at": "2001-01-01T00:00:00Z"}}
	for i := range expires[:2] {
		batches := 0
		server.Set(gitserver.LFSHooks{Answer: func(_ map[string]any, objects []map[string]any) {
			action := objects[0]["actions"].(map[string]any)["download"].(map[string]any)
			for key, value := range expires[min(i+2*batches, 2)] {
				action[key] = value
			}
			batches++
		}})
		if i > 0 {
			w.push(map[string]string{"a.bin": server.Put("content 2")})
		}
		w.syncLFS(allLFS)
		if batches != 2 {
			t.Errorf("%v: %d batch requests, want a second one for the expired action", expires[i], batches)
		}
	}
}

func TestAnAlteredLFSFileIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content"), "b.bin": server.Put("other")})
	w.syncLFS(allLFS)
	testenv.Must(0, os.WriteFile(w.path(widgets, "a.bin"), []byte("altered"), 0o644))(t)
	report := testenv.Must(w.volume.Verify(t.Context(), VerifyRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1)}))(t)
	if report.Found != 1 || !strings.HasSuffix(report.Problems[0].Path, "a.bin") {
		t.Errorf("verify found %v, want a.bin", report.Problems)
	}
	server.Requests()
	commit := w.push(map[string]string{"c.txt": "more"})
	old := filepath.ToSlash(report.Problems[0].Path)
	w.syncLFS(allLFS)
	w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "content", "b.bin": "other", "c.txt": "more"})
	w.mustBeSound(widgets, commit)
	if _, gets := server.Requests(); len(gets) != 1 {
		t.Errorf("downloads %q, want the altered object", gets)
	}
	report = testenv.Must(w.volume.Verify(t.Context(), VerifyRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1)}))(t)
	if report.Found != 1 || report.Problems[0].Path != old {
		t.Errorf("verify found %v, want only the file in the old tree", report.Problems)
	}
}

// TestVerifyFindsAlteredLFSFiles verifies a tree with LFS files, then with one of them overwritten unnoticeably.
func TestVerifyFindsAlteredLFSFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	files := map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("content"), "empty.bin": server.Put(""), "b.txt": "text"}
	w.create(files)
	w.syncLFS(allLFS)
	w.mustVerify()
	testenv.Must(0, rewrite(w.path(widgets, "a.bin")))(t)
	if report := w.verify(true); report.Found != 1 || !strings.HasSuffix(report.Problems[0].Path, "a.bin") {
		t.Errorf("report %+v", report)
	}
	w.syncLFS(allLFS)
	w.mustRead(widgets, map[string]string{".gitattributes": lfsAttributes, "a.bin": "content", "empty.bin": "", "b.txt": "text"})
}

func TestGCDropsUnusedLFSObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1})
	server := w.git.LFS(widgets)
	_, oid := gitserver.LFSPointer("new")
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("old")})
	w.syncLFS(allLFS)
	w.push(map[string]string{"a.bin": server.Put("new")})
	w.syncLFS(allLFS)
	if got := w.lfsObjects(); len(got) != 2 {
		t.Errorf("objects %q, want both within the grace", got)
	}
	for range 2 {
		testenv.Must(w.volume.GC(t.Context(), GCRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Full: true}))(t)
	}
	if got := w.lfsObjects(); !slices.Equal(got, []string{oid}) {
		t.Errorf("objects %q, want the published one", got)
	}
	w.mustVerify()
}

func TestLFSQuotas(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"one file":   {MaxFileBytes: 1 << 20},
		"tree":       {MaxTreeBytes: 1 << 20},
		"repository": {MaxRepoBytes: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), cfg)
			server := w.git.LFS(widgets)
			w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put(strings.Repeat("x", 2<<20))})
			_, err := w.trySyncLFS(allLFS)
			testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
			if batches, _ := server.Requests(); len(batches) > 0 {
				t.Error("the LFS server was asked nevertheless")
			}
		})
	}
}

// lfsClone clones the repository with git and git-lfs.
func (w *world) lfsClone() (dir string) {
	w.t.Helper()
	if _, err := exec.LookPath("git-lfs"); err != nil {
		w.t.Skip("git-lfs is not installed")
	}
	dir = w.t.TempDir()
	for _, args := range [][]string{
		{"-c", "filter.lfs.smudge=git-lfs smudge --skip -- %f", "-c", "filter.lfs.clean=git-lfs clean -- %f", "-c", "filter.lfs.required=true",
			"clone", "-q", w.git.URL(widgets), "."},
		{"config", "filter.lfs.smudge", "git-lfs smudge -- %f"}, {"config", "filter.lfs.clean", "git-lfs clean -- %f"},
		{"lfs", "pull"},
	} {
		testenv.Must(gitserver.Git(w.t.Context(), dir, "", args...))(w.t)
	}
	return dir
}

func TestLFSIsAsWithGitLFSPull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	files := map[string]string{
		".gitattributes":     "[attr]big filter=lfs diff=lfs merge=lfs -text\n*.bin big\n/only-top.dat big\n\"with space.x\" big\ndeep/**/y.raw big\nno/**\n[ab].cls filter=lfs\n",
		"dir/.gitattributes": "*.bin -filter\nkeep.bin filter=lfs\n",
		".lfsconfig":         "[lfs]\n\tfetchexclude = skip,*.not\n",
		"empty.bin":          "",
	}
	for _, path := range []string{
		"a.bin", "only-top.dat", "dir/keep.bin", "with space.x", "deep/y.raw", "deep/1/2/y.raw", "a.cls", "b.cls", "skip/in.bin", "ü/é.bin", "x.not/z.bin",
	} {
		files[path] = server.Put("content of " + path)
	}
	files["crlf.bin"] = strings.ReplaceAll(server.Put("crlf"), "\n", "\r\n")
	files["dir/plain.bin"] = "plain"
	commit := w.create(files)
	w.syncLFS(allLFS)
	want, got := readTree(t, w.lfsClone()), readTree(t, w.path(widgets))
	for path := range want {
		if got[path] != want[path] {
			t.Errorf("%s: %q, git lfs pull has %q", path, got[path], want[path])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, git lfs pull has %d", len(got), len(want))
	}
	w.mustBeSound(widgets, commit)
	w.mustVerify()
}
