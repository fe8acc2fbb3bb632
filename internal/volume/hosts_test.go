package volume

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh/knownhosts"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/testenv"
)

func hashHost(name string) string { return knownhosts.HashHostname(name) }

// TestForeignURLs checks that a URL from a webhook cannot reach a server on this machine, over any transport.
func TestForeignURLs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.withSSH()
	w.create(map[string]string{"a": "1"})
	w.sync("") // leaves a pooled connection, which the foreign request must not reuse
	_, err := w.volume.Remove(t.Context(), RemoveRequest{Repo: repoPath(t, widgets), URL: w.git.URL(widgets), Fence: w.fence.Add(1), Foreign: true})
	testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
	for name, req := range map[string]SyncRequest{"http": w.request(""), "ssh": w.sshRequest(server, "")} {
		t.Run(name, func(t *testing.T) {
			asked := w.git.Stats(widgets)
			req.Foreign, req.Fence = true, w.fence.Add(1)
			req.Repo = repoPath(t, "acme/over-"+name)
			_, err := w.volume.Sync(t.Context(), req)
			testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
			if !strings.Contains(err.Error(), "127.0.0.1 ") || !strings.Contains(err.Error(), "setting hosts") {
				t.Errorf("error: %v", err)
			}
			if now := w.git.Stats(widgets); now.InfoRefs != asked.InfoRefs || now.UploadPacks != asked.UploadPacks {
				t.Error("the server was asked")
			}
			listed := w.open(t.TempDir(), Config{Net: wire.Config{Hosts: []string{"127.0.0.0/8"}}})
			testenv.Must(listed.Sync(t.Context(), req))(t)
		})
	}
}

// TestLinkLocalAddressIsRefused checks that a link-local address is refused before connecting.
func TestLinkLocalAddressIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	listed := w.open(t.TempDir(), Config{Net: wire.Config{Hosts: []string{"169.254.0.0/16", "::/0"}}})
	for _, host := range []string{"169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]", "0.0.0.0", "[64:ff9b::a9fe:a9fe]"} {
		for _, v := range []*Volume{w.volume, listed} {
			req := w.request("")
			req.URL = "http://" + host + "/acme/widgets"
			req.Repo = repoPath(t, "acme/n"+strings.NewReplacer("[", "", "]", "", ":", "-").Replace(host))
			_, err := v.Sync(testenv.Context(t), req)
			testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
		}
	}
}

// TestRedirectToPrivateHostIsRefused redirects from an allowed server to a private one.
func TestRedirectToPrivateHostIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	moved := httptest.NewServer(http.RedirectHandler(w.git.URL(widgets)+"/info/refs?service=git-upload-pack", http.StatusFound))
	defer moved.Close()
	req := w.request("")
	req.URL = moved.URL + "/acme/widgets.git"
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
	if stats := w.git.Stats(widgets); stats.InfoRefs != 0 {
		t.Error("the server inside was asked")
	}
	from, to := hostOf(t, moved.URL), hostOf(t, w.git.URL(widgets))
	one := w.open(t.TempDir(), Config{Net: wire.Config{Hosts: []string{from}}})
	_, err = one.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
	both := w.open(t.TempDir(), Config{Net: wire.Config{Hosts: []string{from, to}}})
	testenv.Must(both.Sync(t.Context(), req))(t)
}

func hostOf(t *testing.T, rawURL string) string { return testenv.Must(url.Parse(rawURL))(t).Host }
