package gitea

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

const secret = "a secret of the forge, for tests"

// service is a running lockstep serve with the webhook source "forge".
type service struct {
	t           *testing.T
	process     *proctest.Process
	redis       *redistest.Server
	root        string
	credentials string
	hooks       string // URL for webhooks of the forge
	last        string // ID of the last result that await has read
}

// serve starts a service until the test ends. auto is the app that watches new repositories below the URL prefix urls, or "".
func serve(t *testing.T, auto, urls string) *service {
	t.Helper()
	s := &service{t: t, redis: redistest.Start(t), root: t.TempDir(), credentials: t.TempDir(), last: "0"}
	sources := t.TempDir()
	s.write(filepath.Join(sources, "forge"), map[string]string{"forge": "gitea", "secret": secret})
	if auto != "" {
		s.write(filepath.Join(sources, "forge"), map[string]string{"autoApp": auto, "autoURLs": urls})
	}
	s.process = proctest.Start(t, "serve", "--redis", s.redis.URL(), "--root", s.root, "--listen", "127.0.0.1:0", "--hooks", sources,
		"--spool", filepath.Join(t.TempDir(), "spool"), "--credentials", s.credentials, "--hosts", "127.0.0.1")
	s.hooks = "http://" + s.process.ListenAddress("listening") + "/hooks/forge"
	s.process.AwaitLog("worker takes changes")
	return s
}

func (s *service) write(dir string, files map[string]string) {
	s.t.Helper()
	proctest.Must(0, os.MkdirAll(dir, 0o700))(s.t)
	for name, text := range files {
		proctest.Must(0, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))(s.t)
	}
}

// run runs a command of lockstep that must succeed.
func (s *service) run(args ...string) string {
	s.t.Helper()
	stdout, stderr, code := proctest.RunLockstep(s.t, []string{"LOCKSTEP_REDIS=" + s.redis.URL()}, args...)
	if code != 0 {
		s.t.Fatalf("lockstep %q: exit code %d\n%s", args, code, stderr)
	}
	return stdout
}

// watch adds a watch, without a poll unless the arguments have one.
func (s *service) watch(url string, args ...string) {
	s.t.Helper()
	s.run(append([]string{"watch", "add", url, "--no-check", "--poll", "never"}, args...)...)
}

// await returns the next result for which ok is true, and all results read before it since the last call.
func (s *service) await(what string, ok func(events.Result) bool) (found events.Result, before []events.Result) {
	s.t.Helper()
	client := s.redis.Client()
	proctest.Eventually(s.t, func() bool {
		entries := proctest.Must(client.XRangeN(context.Background(), events.DefaultNamespace.Results(), "("+s.last, "+", 100).Result())(s.t)
		for _, entry := range entries {
			s.last = entry.ID
			found = proctest.DecodeResult(s.t, redis.XMessage(entry))
			if ok(found) {
				return true
			}
			before = append(before, found)
		}
		return false
	}, "%s", what)
	return found, before
}

// synced awaits the result of an app for a commit.
func (s *service) synced(app, commit string) (events.Result, []events.Result) {
	s.t.Helper()
	return s.await("app "+app+" receives "+commit, func(r events.Result) bool {
		return r.Type == events.ResultSynced && r.App == app && r.After == commit
	})
}

// awaitShown waits until a repository of acme is shown with a text.
func (s *service) awaitShown(name, text string) {
	s.t.Helper()
	shown := ""
	proctest.Eventually(s.t, func() bool {
		shown = s.run("repos", "show", "acme/"+name, "--output", "json")
		return strings.Contains(shown, text)
	}, "acme/%s is shown with %s", name, text)
}

// read returns a published file.
func (s *service) read(path string) string {
	s.t.Helper()
	return string(proctest.Must(os.ReadFile(filepath.Join(s.root, path)))(s.t))
}

func (s *service) published(name string) bool {
	_, err := os.Stat(filepath.Join(s.root, name))
	return err == nil
}
