package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

const refusedRepo = "acme/widgets"

// refused is a service with a reader, whose app has synced a repository, and a remote that has begun to answer 403.
type refused struct {
	*service
	remote    *remoteHost
	git       *gitserver.Server
	tokenFile string // of the app docs
	token     string
	entry     string // of the change that was refused
}

// startRefused calls before ahead of the refusal.
func startRefused(t *testing.T, before func(*refused)) *refused {
	t.Helper()
	git := proctest.StartGit(t)
	proctest.Must(git.Create(t.Context(), refusedRepo, map[string]string{"a": "1"}))(t)
	s := &refused{git: git, remote: startRemote(t, 2, inFrontOf(t, git)), tokenFile: t.TempDir() + "/token"}
	s.service = startService(t, nil, "--roles", "receiver,worker,notifier,scheduler,reader")
	s.watch(map[string]any{"app": "docs", "url": s.remote.url(refusedRepo), "poll": "never"})
	s.awaitSynced(s.publish(s.remote.url(refusedRepo), "app", "docs"))
	out, stderr, code := proctest.RunLockstep(t, nil, "tokens", "create", "--app", "docs", "--json", "--redis", s.redis.URL())
	if code != 0 {
		t.Fatalf("tokens create: exit code %d: %s", code, stderr)
	}
	s.token, _ = proctest.DecodeJSON(t, out)["token"].(string)
	proctest.Must(0, os.WriteFile(s.tokenFile, []byte(s.token), 0o600))(t)
	s.awaitRead(http.StatusOK, "before the refusal")
	before(s)
	s.remote.does(answers(http.StatusForbidden, 0))
	s.entry = s.publish(s.remote.url(refusedRepo), "app", "docs")
	proctest.Eventually(t, func() bool {
		_, answer := s.do("GET", "/api/v1/repos/"+refusedRepo, "")
		return strings.Contains(answer, `"class":"auth"`)
	}, "the refusal is recorded")
	return s
}

// awaitRead waits until a request by the app for the repository's files has that status.
func (s *refused) awaitRead(want int, when string) {
	s.Helper()
	status := 0
	proctest.Eventually(s.T, func() bool {
		status, _ = s.do("GET", "/api/v1/repos/"+refusedRepo+"/tree", "", "Authorization", "Bearer "+s.token)
		return status == want
	}, "%s the reader answers %d; it answers %d", when, want, &status)
}

// follow starts a follower and waits until it has a copy.
func (s *refused) follow() (copied func() bool) {
	s.Helper()
	root := s.TempDir()
	copied = func() bool { _, err := os.Stat(root + "/" + refusedRepo + "/a"); return err == nil }
	proctest.Start(s.T, "follow", "http://"+s.address, "--root", root, "--token-file", s.tokenFile)
	proctest.Eventually(s.T, copied, "the follower has a copy")
	return copied
}

// TestRefusalForSomeSecondsTakesNothing has an old follower keep its copy while the remote refuses, and a new one make one: both keep what the
// reader lists. Once the remote accepts the credential, the change settles.
func TestRefusalForSomeSecondsTakesNothing(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	var copied func() bool
	s := startRefused(t, func(s *refused) { copied = s.follow() })
	s.awaitRead(http.StatusOK, "while the remote refuses")
	s.follow()
	if r, ok := s.resultOf(s.entry); ok || !copied() {
		t.Errorf("the change has a result: %v (%s); the older copy is there: %v", ok, r.Type, copied())
	}
	commit := proctest.Must(s.git.Commit(t.Context(), refusedRepo, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	s.remote.does(nil)
	if r := s.awaitSynced(s.entry); r.After != commit || r.Attempts != 1 {
		t.Errorf("synced to %s after %d attempts, want %s after one", r.After, r.Attempts, commit)
	}
	s.awaitRead(http.StatusOK, "after the refusal")
}

// TestConfirmedRefusalEndsAccess has the record of the refusal be six minutes older, and the worker restart, before the next attempt.
func TestConfirmedRefusalEndsAccess(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const key = "lockstep:{0}:repo:" + refusedRepo
	s := startRefused(t, func(*refused) {})
	s.process.Kill()
	var record map[string]any
	text := proctest.Must(s.client.HGet(t.Context(), key, "trouble").Result())(t)
	proctest.Must(0, json.Unmarshal([]byte(text), &record))(t)
	row := record["all"].(map[string]any)["credential::docs"].(map[string]any)
	row["since"] = proctest.Must(time.Parse(time.RFC3339, row["since"].(string)))(t).Add(-6 * time.Minute)
	proctest.Must(s.client.HSet(t.Context(), key, "trouble", string(proctest.Must(json.Marshal(record))(t))).Result())(t)
	s.start()
	if r := s.await(s.entry); r.Type != events.ResultFailed || r.Class != events.ClassAuth {
		t.Errorf("%s %s %s, want it refused", r.Type, r.Class, r.Error)
	}
	s.awaitRead(http.StatusNotFound, "once the refusal is confirmed")
	s.remote.does(nil)
	s.awaitSynced(s.publish(s.remote.url(refusedRepo), "app", "docs"))
	s.awaitRead(http.StatusOK, "once the remote accepts the credential")
}
