package volume

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// lfsServer is git-lfs' own test server.
const lfsServer = "github.com/git-lfs/git-lfs/v3@v3.3.0"

// startLFSServer builds and starts git-lfs' own test server, which changes its behaviour for objects with certain contents. It
// returns its URL, with a user name and a password, for bare repositories below dir.
func startLFSServer(t *testing.T, dir string) (base string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", lfsServer).Output()
	if err != nil {
		t.Skipf("%s cannot be downloaded: %v", lfsServer, err)
	}
	var module struct{ Dir string }
	testenv.Must(0, json.Unmarshal(out, &module))(t)
	temp := t.TempDir()
	program := filepath.Join(temp, "lfstest-gitserver")
	build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-tags", "testtools", "-o", program, "./t/cmd/lfstest-gitserver.go")
	build.Dir = module.Dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("%s cannot be built: %v\n%s", lfsServer, err, out)
	}
	server := exec.CommandContext(t.Context(), program)
	server.Dir = temp
	server.Env = append(os.Environ(), "LFSTEST_DIR="+dir, "LFSTEST_URL="+filepath.Join(temp, "url"), "GIT_CONFIG_GLOBAL=/dev/null")
	testenv.Must(0, server.Start())(t)
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	for ctx := testenv.Context(t); base == ""; time.Sleep(10 * time.Millisecond) {
		content, _ := os.ReadFile(filepath.Join(temp, "url"))
		base = string(content)
		if ctx.Err() != nil {
			t.Fatal("the LFS server has not started")
		}
	}
	u := testenv.Must(url.Parse(base))(t)
	u.User = url.UserPassword("user", "pass")
	return u.String()
}

// TestLFSFromTheServerOfGitLFS fetches objects that git lfs push has sent to git-lfs' own test server.
func TestLFSFromTheServerOfGitLFS(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Skip("git-lfs is not installed")
	}
	dir := t.TempDir()
	base := startLFSServer(t, dir)
	for content, class := range map[string]events.Class{ // "" for a success
		"ordinary":                      "",
		"return-expired-action":         "",
		"return-expired-action-forever": events.ClassServer,
		"storage-download-retry":        "",
		"status-batch-resume-206":       "",
		"batch-resume-fail-fallback":    "",
		"batch-hash-algo-empty":         "",
		"batch-hash-algo-invalid":       events.ClassConfig,
		"status-batch-403":              events.ClassNotFound,
		"status-batch-404":              events.ClassNotFound,
		"status-batch-410":              events.ClassNotFound,
		"status-batch-422":              events.ClassNotFound,
		"status-batch-500":              events.ClassServer,
		"unknown-oid":                   events.ClassNotFound,
		"send-deprecated-links":         events.ClassNotFound,
	} {
		t.Run(content, func(t *testing.T) {
			t.Parallel()
			git := func(dir string, args ...string) string {
				t.Helper()
				return testenv.Must(gitserver.Git(t.Context(), dir, "", args...))(t)
			}
			remote := filepath.Join(dir, content+".git")
			git(dir, "init", "-q", "--bare", "--initial-branch=main", remote)
			git(remote, "config", "http.receivepack", "true")
			clone := t.TempDir()
			git(clone, "init", "-q", "--initial-branch=main", ".")
			for key, value := range map[string]string{
				"filter.lfs.clean": "git-lfs clean -- %f", "filter.lfs.smudge": "git-lfs smudge -- %f", "filter.lfs.required": "true", "lfs.locksverify": "false",
			} {
				git(clone, "config", key, value)
			}
			want := map[string]string{".gitattributes": lfsAttributes, "dir/a.bin": content}
			for path, content := range want {
				testenv.Must(0, os.MkdirAll(filepath.Dir(filepath.Join(clone, path)), 0o755))(t)
				testenv.Must(0, os.WriteFile(filepath.Join(clone, path), []byte(content), 0o644))(t)
			}
			git(clone, "add", "-A")
			git(clone, "commit", "-q", "-m", "Add an object")
			git(clone, "remote", "add", "origin", base+"/"+content)
			git(clone, "push", "-q", "--no-verify", "origin", "main")
			if class == "" {
				git(clone, "lfs", "push", "--all", "origin")
			} else {
				storeDirectly(t, base, content)
			}

			v := testenv.Must(OpenVolume(t.TempDir(), Config{}))(t)
			t.Cleanup(v.Close)
			without := testenv.Must(url.Parse(base))(t)
			without.User = nil
			req := SyncRequest{
				Repo: repoPath(t, widgets), URL: without.String() + "/" + content, Fence: 1, LFS: allLFS,
				AuthFor: func(_ context.Context, to string) (wire.Auth, error) {
					if strings.Contains(to, "/info/lfs") {
						return wire.Auth{Username: "user", Password: "pass"}, nil
					}
					return wire.Auth{}, nil
				},
			}
			_, err := v.Sync(t.Context(), req)
			if class != "" {
				if events.ClassOf(err) != class {
					t.Errorf("%v, want class %s", err, class)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := readTree(t, filepath.Join(v.Root(), widgets)); got["dir/a.bin"] != content || got[".gitattributes"] != lfsAttributes || len(got) != 2 {
				t.Errorf("published %q", got)
			}
			if status := git(filepath.Join(v.Root(), widgets), "status", "--porcelain"); status != "" {
				t.Errorf("git status: %s", status)
			}
		})
	}
}

// storeDirectly stores an object that git lfs push may not send, because the server refuses its batch.
func storeDirectly(t *testing.T, base, content string) {
	t.Helper()
	_, oid := gitserver.LFSPointer(content)
	req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodPut, base+"/storage/"+oid+"?r="+content, strings.NewReader(content)))(t)
	res := testenv.Must(http.DefaultClient.Do(req))(t)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("PUT: %s", res.Status)
	}
}
