package volume

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// withSSH also serves the world's repositories over SSH.
func (w *world) withSSH() *gitserver.SSHServer {
	w.t.Helper()
	server := testenv.Must(w.git.StartSSH())(w.t)
	w.t.Cleanup(server.Close)
	return server
}

func (w *world) sshRequest(server *gitserver.SSHServer, ref string) SyncRequest {
	req := w.request(ref)
	req.URL = server.URL(widgets)
	req.Auth = wire.Auth{SSHKey: server.ClientKey, KnownHosts: server.KnownHosts()}
	return req
}

func TestSyncOverSSH(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	first := w.create(map[string]string{"a": "1", "b": strings.Repeat("many bytes ", 20000)})
	res := testenv.Must(w.volume.Sync(t.Context(), w.sshRequest(server, "")))(t)
	if res.After != first {
		t.Errorf("got %s, want %s", res.After, first)
	}
	w.mustBeSound(widgets, first)

	second := w.push(map[string]string{"a": "2"})
	testenv.Must(w.volume.Sync(t.Context(), w.sshRequest(server, "")))(t)
	w.mustBeSound(widgets, second)
	if w.git.Stats(widgets).UploadPacks != 2 {
		t.Error("more than one session for a sync")
	}

	forced := w.commit(gitserver.Main, gitserver.Edit{Orphan: true, Write: map[string]string{"c": "3"}})
	testenv.Must(w.volume.Sync(t.Context(), w.sshRequest(server, "")))(t)
	w.mustBeSound(widgets, forced)
	w.mustRead(widgets, map[string]string{"c": "3"})

	if res := testenv.Must(w.volume.Sync(t.Context(), w.sshRequest(server, "")))(t); res.Published {
		t.Error("published what was there already")
	}
	for _, command := range server.Commands() {
		if command != "git-upload-pack '/acme/widgets.git'" {
			t.Errorf("asked to run %s", command)
		}
	}
	mustCloseConnections(t, server)
}

// mustCloseConnections waits until all connections are closed.
func mustCloseConnections(t *testing.T, server *gitserver.SSHServer) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); server.Open() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are still open", server.Open())
		}
	}
}

// TestDamagedStoreOverSSH makes one Sync fetch twice, which needs a second SSH connection.
func TestDamagedStoreOverSSH(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	w.create(map[string]string{"a": strings.Repeat("1", 100), "b": "1"})
	testenv.Must(w.volume.Sync(t.Context(), w.sshRequest(server, "")))(t)
	store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
	for _, pack := range testenv.Must(filepath.Glob(filepath.Join(store.dir, "objects/pack/*.pack")))(t) {
		testenv.Must(0, os.Remove(pack))(t)
	}
	commit := w.push(map[string]string{"b": "2"})

	testenv.Must(w.volume.Sync(t.Context(), w.sshRequest(server, "")))(t)

	w.mustBeSound(widgets, commit)
	if n := len(server.Commands()); n != 3 {
		t.Errorf("%d commands were run, want 3", n)
	}
}

func TestSSHKeysAndHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, other := w.withSSH(), w.withSSH()
	w.create(map[string]string{"a": "1"})
	knownHosts := filepath.Join(t.TempDir(), "known_hosts")
	testenv.Must(0, os.WriteFile(knownHosts, []byte("# ours\n"+server.KnownHosts()), 0o600))(t)
	trusting := w.open(t.TempDir(), Config{Net: wire.Config{KnownHosts: knownHosts}})
	empty := filepath.Join(t.TempDir(), "empty")
	testenv.Must(0, os.WriteFile(empty, nil, 0o600))(t)
	strict := w.open(t.TempDir(), Config{Net: wire.Config{KnownHosts: empty}})
	host, port, _ := net.SplitHostPort(server.Addr())
	otherKey := strings.Replace(other.KnownHosts(), strings.Fields(other.KnownHosts())[0], "["+host+"]:"+port, 1)
	for name, tc := range map[string]struct {
		volume *Volume
		auth   wire.Auth
		class  events.Class
		says   string
	}{
		"a known host":      {trusting, wire.Auth{SSHKey: server.ClientKey}, "", ""},
		"the credential's":  {strict, wire.Auth{SSHKey: server.ClientKey, KnownHosts: server.KnownHosts()}, "", ""},
		"hashed":            {strict, wire.Auth{SSHKey: server.ClientKey, KnownHosts: hashed(server.KnownHosts())}, "", ""},
		"an unknown host":   {strict, wire.Auth{SSHKey: server.ClientKey}, events.ClassConfig, "known-hosts"},
		"a changed key":     {trusting, wire.Auth{SSHKey: server.ClientKey, KnownHosts: otherKey}, events.ClassAuth, "somebody may be in between"},
		"a revoked key":     {trusting, wire.Auth{SSHKey: server.ClientKey, KnownHosts: "@revoked " + server.KnownHosts()}, events.ClassAuth, "in between"},
		"another's key":     {trusting, wire.Auth{SSHKey: other.ClientKey}, events.ClassAuth, "refused the credential"},
		"no credential":     {trusting, wire.Auth{}, events.ClassAuth, "has an sshKey"},
		"a password alone":  {trusting, wire.Auth{Username: "git", Password: secret}, events.ClassConfig, "no sshKey"},
		"no key":            {trusting, wire.Auth{SSHKey: "-----BEGIN " + secret}, events.ClassConfig, "cannot be read"},
		"bad known hosts":   {trusting, wire.Auth{SSHKey: server.ClientKey, KnownHosts: "@what " + secret}, events.ClassConfig, "knownHosts"},
		"encrypted, opened": {trusting, wire.Auth{SSHKey: encrypted(t, server.ClientKey), SSHKeyPassphrase: secret}, "", ""},
		"encrypted":         {trusting, wire.Auth{SSHKey: encrypted(t, server.ClientKey)}, events.ClassConfig, "sshKeyPassphrase"},
	} {
		t.Run(name, func(t *testing.T) {
			req := w.sshRequest(server, "")
			req.Auth = tc.auth

			_, err := tc.volume.Sync(t.Context(), req)

			if tc.class == "" {
				testenv.Must(0, err)(t)
				return
			}
			testenv.MustFail(t, err, tc.class, events.Permanent)
			if !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "PRIVATE KEY") {
				t.Errorf("error: %v", err)
			}
		})
	}
	mustHoldNoSecret(t, trusting.Root())
	mustCloseConnections(t, server)
}

// hashed hashes the host name, as HashKnownHosts does.
func hashed(line string) string {
	name, rest, _ := strings.Cut(line, " ")
	return hashHost(name) + " " + rest
}

func encrypted(t *testing.T, key string) string {
	t.Helper()
	private := *testenv.Must(ssh.ParseRawPrivateKey([]byte(key)))(t).(*ed25519.PrivateKey)
	return string(pem.EncodeToMemory(testenv.Must(ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte(secret)))(t)))
}

// TestChangedHostKeyType lists a host key in known_hosts whose type is not the server's first choice.
func TestChangedHostKeyType(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	w.create(map[string]string{"a": "1"})
	req := w.sshRequest(server, "")
	testenv.Must(0, server.NewHostKey())(t)
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassAuth, events.Permanent)
}

func TestSSHServerErrors(t *testing.T) {
	t.Parallel()
	const garbage = "<html>" + secret
	for name, tc := range map[string]struct {
		answer      gitserver.SSHAnswer
		class       events.Class
		disposition events.Disposition
	}{
		"not found, GitHub":    {gitserver.SSHAnswer{Stderr: "ERROR: Repository not found.\nfatal: " + secret, Status: 1}, events.ClassNotFound, events.Permanent},
		"not found, GitLab":    {gitserver.SSHAnswer{Stderr: "remote:\nremote: ERROR: The project you were looking for could not be found or you don't have permission to view it.\n", Status: 1}, events.ClassNotFound, events.Permanent},
		"not found, git":       {gitserver.SSHAnswer{Stderr: "fatal: '/x/" + secret + "' does not appear to be a git repository", Status: 128}, events.ClassNotFound, events.Permanent},
		"not found, ERR":       {gitserver.SSHAnswer{Stdout: "001dERR Repository not found.\n", Status: 1}, events.ClassNotFound, events.Permanent},
		"no access":            {gitserver.SSHAnswer{Stderr: "remote: Access denied. " + secret, Status: 1}, events.ClassAuth, events.Permanent},
		"no such command":      {gitserver.SSHAnswer{Stderr: "sh: git-upload-pack: command not found", Status: 127}, events.ClassServer, events.Retryable},
		"a failure, no words":  {gitserver.SSHAnswer{Status: 3}, events.ClassServer, events.Retryable},
		"success, no words":    {gitserver.SSHAnswer{}, events.ClassServer, events.Retryable},
		"garbage":              {gitserver.SSHAnswer{Stdout: garbage, Status: 0}, events.ClassServer, events.Retryable},
		"garbage, and waiting": {gitserver.SSHAnswer{Stdout: garbage, Hang: true}, events.ClassServer, events.Retryable},
		"cut off":              {gitserver.SSHAnswer{Stdout: "00", Drop: true}, events.ClassNetwork, events.Retryable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			server := w.withSSH()
			server.Answer(&tc.answer)

			_, err := w.volume.Sync(t.Context(), w.sshRequest(server, ""))

			testenv.MustFail(t, err, tc.class, tc.disposition)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats what the remote said: %v", err)
			}
			mustCloseConnections(t, server)
		})
	}
}

func TestEmptyRepositoryOverSSH(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	_, err := w.volume.Sync(t.Context(), w.sshRequest(server, ""))
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	_, err = w.volume.Sync(t.Context(), w.sshRequest(server, "none"))
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
	mustCloseConnections(t, server)
}

// TestRemoveChecksRemoteOverSSH checks that a repository is removed only if the remote reports it as missing.
func TestRemoveChecksRemoteOverSSH(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	w.create(map[string]string{"a": "1"})
	req := w.sshRequest(server, "")
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	remove := func() (bool, error) {
		return w.volume.Remove(t.Context(), RemoveRequest{Repo: req.Repo, Auth: req.Auth, Fence: w.fence.Add(1)})
	}
	_, err := remove()
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
	server.Answer(&gitserver.SSHAnswer{Stderr: "sh: git-upload-pack: not found", Status: 127})
	_, err = remove()
	testenv.MustFail(t, err, events.ClassServer, events.Retryable)
	server.Answer(nil)
	testenv.Must(0, w.git.Delete(widgets))(t)
	if removed := testenv.Must(remove())(t); !removed {
		t.Error("not removed")
	}
}

func TestInvalidSSHServer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"a web server": "HTTP/1.1 400 Bad Request\r\n\r\n" + secret, "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			_, key := must2(ed25519.GenerateKey(rand.Reader))(t)
			req := w.request("")
			req.URL = "ssh://git@" + answerRaw(t, answer) + "/acme/widgets"
			req.Auth = wire.Auth{SSHKey: string(pem.EncodeToMemory(testenv.Must(ssh.MarshalPrivateKey(key, ""))(t)))}
			_, err := w.volume.Sync(t.Context(), req)
			testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats what the remote said: %v", err)
			}
		})
	}
}

func must2[A, B any](a A, b B, err error) func(*testing.T) (A, B) {
	return func(t *testing.T) (A, B) {
		t.Helper()
		testenv.Must(0, err)(t)
		return a, b
	}
}

// TestCancelClosesSSHConnection cancels while the refs are listed and while a pack is received.
func TestCancelClosesSSHConnection(t *testing.T) {
	t.Parallel()
	advert := "004b1111111111111111111111111111111111111111 refs/heads/main\x00side-band-64k\n0000"
	for name, stdout := range map[string]string{"listing": "", "in the middle": "00", "fetching": advert} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			server := w.withSSH()
			server.Answer(&gitserver.SSHAnswer{Stdout: stdout, Hang: true})
			listed := make(chan struct{})
			w.volume = w.open(t.TempDir(), Config{Step: func(step string) {
				if step == "listed" {
					close(listed)
				}
			}})
			cause := errors.New("shutting down")
			ctx, cancel := context.WithCancelCause(testenv.Context(t))
			ended := make(chan error, 1)
			go func() {
				_, err := w.volume.Sync(ctx, w.sshRequest(server, "main"))
				ended <- err
			}()
			if stdout == advert {
				<-listed
			}
			for len(server.Commands()) == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			began := time.Now()
			cancel(cause)
			if err := <-ended; !errors.Is(err, cause) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > 30*time.Second { // longer could be a timeout instead of the cancellation
				t.Errorf("it took %v", took)
			}
			mustCloseConnections(t, server)
		})
	}
}

func TestPackOverLimitOverSSH(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	w.create(map[string]string{"a": strings.Repeat("x", 100)})
	w.volume = w.open(t.TempDir(), Config{MaxPackBytes: 100})
	_, err := w.volume.Sync(t.Context(), w.sshRequest(server, ""))
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
	mustCloseConnections(t, server)
}
