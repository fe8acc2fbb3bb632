package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

const secret = "s3cr3t-t0k3n"

func TestCredentials(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		auth wire.Auth
		ok   bool
		says string
	}{
		"right password": {auth: wire.Auth{Username: "ada", Password: secret}, ok: true},
		"right token":    {auth: wire.Auth{BearerToken: secret}, ok: true},
		"wrong password": {auth: wire.Auth{Username: "ada", Password: "wrong-" + secret}, says: "check that it is current"},
		"none":           {says: "name one in the watch or change"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			commit := w.create(map[string]string{"a": "1"})
			w.git.RequireAuth(widgets, "ada", secret)
			req := w.request("")
			req.Auth = tc.auth

			_, err := w.volume.Sync(t.Context(), req)

			if tc.ok {
				testenv.Must(0, err)(t)
				w.mustBeSound(widgets, commit)
			} else {
				testenv.MustFail(t, err, events.ClassAuth, events.Permanent)
				if !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), secret) {
					t.Errorf("error: %v", err)
				}
			}
			mustHoldNoSecret(t, w.volume.Root())
		})
	}
}

func mustHoldNoSecret(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), secret) {
			t.Errorf("the secret is in %s", path)
		}
		return err
	})
	testenv.Must(0, err)(t)
}

func TestCredentialIsNotSentAfterCrossHostRedirect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	moved := httptest.NewServer(http.RedirectHandler(w.git.URL(widgets)+"/info/refs?service=git-upload-pack", http.StatusMovedPermanently))
	defer moved.Close()
	w.volume = w.open(t.TempDir(), Config{Net: wire.Config{Hosts: []string{"127.0.0.1"}}})
	req := w.request("")
	req.URL, req.Auth = moved.URL+"/acme/widgets.git", wire.Auth{Username: "ada", Password: secret}

	testenv.Must(w.volume.Sync(t.Context(), req))(t)

	if seen := w.git.Stats(widgets).Credentials; len(seen) != 0 {
		t.Errorf("credentials were sent along: %d", len(seen))
	}
}

func TestRemoteErrors(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			rw.WriteHeader(status)
			_, _ = rw.Write([]byte(body))
		})
	}
	for name, tc := range map[string]struct {
		remote      http.Handler
		class       events.Class
		disposition events.Disposition
		text        string
	}{
		"server error":  {answer(503, "echo "+secret), events.ClassServer, events.Retryable, "HTTP status 503"},
		"unchanged":     {answer(304, ""), events.ClassServer, events.Retryable, "HTTP status 304"},
		"forbidden":     {answer(403, "echo "+secret), events.ClassAuth, events.Permanent, "HTTP 403"},
		"too many":      {answer(429, ""), events.ClassBusy, events.Retryable, "limits the request rate"},
		"a login page":  {answer(200, "<html>log in</html>"), events.ClassServer, events.Retryable, "not Git protocol"},
		"nothing":       {answer(200, ""), events.ClassServer, events.Retryable, "empty response"},
		"cut off":       {answer(200, "001e# service=git-upload-pack\n0000004"), events.ClassServer, events.Retryable, "too early"},
		"cut in a ref":  {answer(200, "001e# service=git-upload-pack\n00000099"+strings.Repeat("1", 40)+" HEAD"), events.ClassServer, events.Retryable, "too early"},
		"cut after one": {answer(200, "001e# service=git-upload-pack\n0000"+"0040"+strings.Repeat("1", 40)+" HEAD\x00agent=git/2.39"), events.ClassServer, events.Retryable, "too early"},
		"negative size": {answer(200, "-001"), events.ClassServer, events.Retryable, "not Git protocol"},
		"an error":      {answer(200, "0013ERR "+secret), events.ClassServer, events.Retryable, "Git protocol error"},
		"a new hash function": {answer(200, "001e# service=git-upload-pack\n0000"+"0062"+strings.Repeat("1", 64)+" HEAD\x00object-format=sha512 a=b0000"),
			events.ClassConfig, events.Permanent, "neither SHA-1 nor SHA-256"},
		"broken off": {http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Length", "100")
			_, _ = rw.Write([]byte("001e# service=git-upload-pack\n"))
		}), events.ClassNetwork, events.Retryable, "in the middle"},
		"redirect to a file":  {http.RedirectHandler("file:///etc/passwd", http.StatusFound), events.ClassServer, events.Retryable, "neither http nor https"},
		"redirect loop":       {http.RedirectHandler("/info/refs?service=git-upload-pack", http.StatusFound), events.ClassServer, events.Retryable, "10 times in a row"},
		"redirect to nowhere": {answer(302, ""), events.ClassServer, events.Retryable, "without a valid Location"},
		"redirect to another page": {http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/news" {
				http.Redirect(rw, r, "/news", http.StatusFound)
			}
		}), events.ClassServer, events.Retryable, "not that of a repository"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			server := httptest.NewServer(tc.remote)
			defer server.Close()
			req := w.request("")
			req.URL, req.Auth = server.URL+"/acme/widgets", wire.Auth{Username: "ada", Password: secret}

			_, err := w.volume.Sync(t.Context(), req)

			testenv.MustFail(t, err, tc.class, tc.disposition)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats what the remote said: %v", err)
			}
			if !strings.Contains(err.Error(), tc.text) {
				t.Errorf("the error does not say %q: %v", tc.text, err)
			}
		})
	}
}

func TestUnreachableRemote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	req := w.request("")
	req.URL = "http://" + refusingAddress(t) + "/acme/widgets"
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)

	req.URL = "http://does-not-exist.invalid/acme/widgets"
	req.Repo = repoPath(t, "acme/other")
	_, err = w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
}

// refusingAddress returns an address where nobody listens, nor can until the test ends.
func refusingAddress(t *testing.T) string {
	t.Helper()
	fd := testenv.Must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	testenv.Must(0, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))(t)
	bound := testenv.Must(unix.Getsockname(fd))(t).(*unix.SockaddrInet4)
	return fmt.Sprintf("127.0.0.1:%d", bound.Port)
}

func TestServerErrorThenRecovery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.git.Answer(widgets, http.StatusInternalServerError)
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassServer, events.Retryable)
	w.git.Answer(widgets, 0)
	w.mustBeSound(widgets, w.sync("").After)
}

func TestPackOverLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": strings.Repeat("x", 100)})
	w.volume = w.open(t.TempDir(), Config{MaxPackBytes: 100})
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	mustBeTidy(t, w)
}

func TestTreeOverLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "12345", "b": "12345"}) // two files, one blob
	w.volume = w.open(t.TempDir(), Config{MaxTreeBytes: 9})
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	mustBeTidy(t, w)
	w.volume = w.open(t.TempDir(), Config{MaxTreeBytes: 10})
	w.sync("")
	w.push(map[string]string{"b": "123456"})
	_, err = w.trySync("")
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
}

func TestTooManyFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "2", "c/d": "3"})
	w.volume = w.open(t.TempDir(), Config{MaxTreeFiles: 2})
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	w.volume = w.open(t.TempDir(), Config{MaxTreeFiles: 3, MaxFiles: 2})
	if res := w.sync(""); len(res.Files) != 2 || !res.Truncated {
		t.Errorf("unexpected result %+v", res)
	}
}

// mustBeTidy checks that no unfinished work is left.
func mustBeTidy(t *testing.T, w *world) {
	t.Helper()
	f := w.volume.folder(repoPath(t, widgets))
	for _, v := range w.opened {
		v.AwaitDeletions()
	}
	for _, dir := range []string{f.quarantines(), f.building(), f.trash()} {
		if entries := testenv.Must(disk.ReadDir(dir))(t); len(entries) != 0 {
			t.Errorf("%s holds %v", dir, entries)
		}
	}
	for _, dir := range []string{f.trees(), f.dir} {
		for _, entry := range testenv.Must(disk.ReadDir(dir))(t) {
			name := entry.Name()
			if strings.HasPrefix(name, flipPrefix) || strings.Contains(name, disk.TempInfix) {
				t.Errorf("%s holds %s", dir, name)
			}
		}
	}
}

func TestLostLeaseIsNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2"})
	lost := errors.New("lease lost")
	req := w.request("")
	req.Confirm = func(context.Context) error { return lost }

	_, err := w.volume.Sync(t.Context(), req)

	if !errors.Is(err, lost) {
		t.Errorf("got %v", err)
	}
	w.mustBeSound(widgets, first)
	mustBeTidy(t, w)
}

func TestCancelledWhileFetching(t *testing.T) {
	t.Parallel()
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	held := false
	w := newWorld(t, gitserver.WithBefore(func(request context.Context, _, service string) {
		if held && service == "git-upload-pack" {
			cancel(cause)
			<-request.Done()
		}
	}))
	first := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2"})
	held = true

	_, err := w.volume.Sync(ctx, w.request(""))

	if !errors.Is(err, cause) || events.ClassOf(err) == events.ClassNetwork {
		t.Errorf("got %v", err)
	}
	w.mustBeSound(widgets, first)
	mustBeTidy(t, w)
}

func TestDamagedStoreIsRefetched(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, pack string){
		"index cut short": func(t *testing.T, pack string) { testenv.Must(0, os.Truncate(pack[:len(pack)-4]+"idx", 100))(t) },
		"pack gone":       func(t *testing.T, pack string) { testenv.Must(0, os.Remove(pack))(t) },
		"pack cut short":  func(t *testing.T, pack string) { testenv.Must(0, os.Truncate(pack, 40))(t); deleteTrees(t, pack) },
		"pack overwritten": func(t *testing.T, pack string) {
			testenv.Must(0, os.WriteFile(pack, make([]byte, 400), 0o644))(t)
			deleteTrees(t, pack)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": strings.Repeat("1", 100), "b": "1"})
			w.sync("")
			store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
			packs := testenv.Must(filepath.Glob(filepath.Join(store.dir, "objects/pack/*.pack")))(t)
			testenv.Must(0, os.Chmod(packs[0], 0o644))(t)
			damage(t, packs[0])
			commit := w.push(map[string]string{"b": "2"})

			w.sync("")

			w.mustBeSound(widgets, commit)
			next := w.push(map[string]string{"b": "3"})
			w.sync("")
			w.mustBeSound(widgets, next)
		})
	}
}

// deleteTrees deletes the trees, so that all files must be read from the damaged pack.
func deleteTrees(t *testing.T, pack string) {
	testenv.Must(0, os.RemoveAll(filepath.Join(pack, "../../../../../trees")))(t)
}

// TestNoFullFetchFromBusyServer uses a server that lists its refs and then answers 503.
func TestNoFullFetchFromBusyServer(t *testing.T) {
	t.Parallel()
	var w *world
	busy := false
	w = newWorld(t, gitserver.WithBefore(func(_ context.Context, repo, service string) {
		if busy && service == "info/refs" {
			w.git.Answer(repo, http.StatusServiceUnavailable)
		}
	}))
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2"})
	busy = true
	before := w.git.Stats(widgets).UploadPacks

	_, err := w.trySync("")

	testenv.MustFail(t, err, events.ClassServer, events.Retryable)
	if n := w.git.Stats(widgets).UploadPacks - before; n != 1 {
		t.Errorf("asked %d times", n)
	}
}
