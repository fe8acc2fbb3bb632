package handlers_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// thief is an HTTP server that records everything that it receives.
type thief struct {
	*httptest.Server
	mu       sync.Mutex
	received []string
}

func newThief(t *testing.T, answer http.HandlerFunc) *thief {
	s := &thief{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.received = append(s.received, fmt.Sprintf("%s %s %v %s", r.Method, r.URL, r.Header, body))
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *thief) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received
}

// TestNoTokenLeavesItsPrefix has a hostile .lfsconfig, LFS server and object store try to get the credential of a repository, or
// the header of an action.
func TestNoTokenLeavesItsPrefix(t *testing.T) {
	const token, actionToken = "s3cret-token", "act1on-token"
	basic := base64.StdEncoding.EncodeToString([]byte("bot:" + token))
	object := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("content")) }
	// batch answers a batch request with an href.
	batch := func(href string) http.HandlerFunc {
		_, oid := gitserver.LFSPointer("content")
		return func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"objects":[{"oid":%q,"size":7,"actions":{"download":{"href":%q}}}]}`, oid, href)
		}
	}
	download := func(href string) gitserver.LFSHooks {
		return gitserver.LFSHooks{Answer: func(_ map[string]any, objects []map[string]any) {
			objects[0]["actions"] = map[string]any{"download": map[string]any{"href": href, "header": map[string]string{"X-Secret": actionToken, "Authorization": "Bearer " + actionToken}}}
		}}
	}
	// direct answers with a URL at the repository's own server, for which the credential is needed.
	direct := func(own string) gitserver.LFSHooks {
		_, oid := gitserver.LFSPointer("content")
		return gitserver.LFSHooks{Answer: func(_ map[string]any, objects []map[string]any) {
			objects[0]["actions"] = map[string]any{"download": map[string]any{"href": own + "/info/lfs/objects/" + oid, "header": map[string]string{"X-Secret": actionToken}}}
		}}
	}
	for name, tc := range map[string]struct {
		config string                                            // .lfsconfig; THIEF, OWN and HOST are URLs
		hooks  func(thief string, own string) gitserver.LFSHooks // own is the URL of the repository
		header bool                                              // the thief is sent the header that its href comes with
		class  events.Class                                      // "" if the sync succeeds
		hosts  []string
	}{
		"the URL in .lfsconfig":         {config: "[lfs]\nurl = THIEF/lfs\n"},
		"a path outside of the prefix":  {config: "[lfs]\nurl = HOST/other/repo.git/info/lfs\n", class: events.ClassAuth},
		"a path out of the prefix":      {config: "[lfs]\nurl = OWN/../../other/repo.git/info/lfs\n", class: events.ClassAuth},
		"such a path, for some servers": {config: "[lfs]\nurl = OWN/..;/..;/other/repo.git/info/lfs\n", class: events.ClassAuth},
		"another scheme":                {config: "[lfs]\nurl = ssh://git@127.0.0.1/acme/widgets.git\n", class: events.ClassConfig},
		"another port as href":          {hooks: func(thief, _ string) gitserver.LFSHooks { return download(thief + "/x") }, header: true},
		"the host by another name": {hooks: func(thief, _ string) gitserver.LFSHooks {
			return download(strings.Replace(thief, "127.0.0.1", "localhost", 1) + "/x")
		}, header: true},
		"a port that is not listed":       {hooks: func(thief, _ string) gitserver.LFSHooks { return download(thief + "/x") }, hosts: []string{}, class: events.ClassConfig},
		"a URL in .lfsconfig, not listed": {config: "[lfs]\nurl = THIEF/lfs\n", hosts: []string{}, class: events.ClassConfig},
		"a redirect of the batch": {hooks: func(thief, _ string) gitserver.LFSHooks {
			return gitserver.LFSHooks{Batch: func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, thief+"/lfs/objects/batch", http.StatusTemporaryRedirect)
				return true
			}}
		}},
		"a redirect of the download": {hooks: func(thief, own string) gitserver.LFSHooks {
			hooks := direct(own)
			hooks.Get = func(w http.ResponseWriter, r *http.Request, _ string) bool {
				http.Redirect(w, r, thief+"/x", http.StatusFound)
				return true
			}
			return hooks
		}},
		"redirects there and back": {hooks: func(thief, own string) gitserver.LFSHooks {
			hooks := direct(own)
			hops := 0
			hooks.Get = func(w http.ResponseWriter, r *http.Request, oid string) bool {
				hops++
				to := own + "/info/lfs/objects/" + oid + "?again"
				if hops > 1 {
					to = thief + "/x"
				}
				http.Redirect(w, r, to, http.StatusFound)
				return true
			}
			return hooks
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var host *thief
			host = newThief(t, func(res http.ResponseWriter, req *http.Request) {
				if strings.HasSuffix(req.URL.Path, "/batch") {
					batch(host.URL+"/object")(res, req)
					return
				}
				object(res, req)
			})
			own := w.git.URL("acme/widgets")
			if tc.hosts == nil {
				tc.hosts = []string{"127.0.0.1", "localhost"}
			}
			v := testenv.Must(volume.OpenVolume(w.root, volume.Config{Net: wire.Config{Hosts: tc.hosts}}))(t)
			t.Cleanup(v.Close)
			w.env["LOCKSTEP_CREDENTIAL_BOT_USERNAME"] = "bot"
			w.env["LOCKSTEP_CREDENTIAL_BOT_PASSWORD"] = token
			w.env["LOCKSTEP_CREDENTIAL_BOT_URLS"] = strings.TrimSuffix(own, "widgets.git")
			w.handlers.Volume = v
			w.git.RequireAuth("acme/widgets", "bot", token)
			w.git.RequireAuth("other/repo", "bot", token)
			server := w.git.LFS("acme/widgets")
			config := strings.NewReplacer("THIEF", host.URL, "OWN", own, "HOST", strings.TrimSuffix(own, "/acme/widgets.git")).Replace(tc.config)
			w.create(map[string]string{".gitattributes": "*.bin filter=lfs\n", "a.bin": server.Put("content"), ".lfsconfig": config})
			if tc.hooks != nil {
				server.Set(tc.hooks(host.URL, own))
			}
			w.watchAs(watch.Watch{App: "art", URL: own, Credential: "bot", Options: watch.With(lfs.Options{Mode: lfs.Fetch})}, "")
			result, err := w.handle("1-0", events.Change{URL: own, Credential: "bot", App: "art", Watched: true})
			if events.ClassOf(err) != tc.class && (err != nil || tc.class != "") {
				t.Errorf("%v, %v, want class %q", result, err, tc.class)
			}
			if err == nil && w.read("acme/widgets/a.bin") != "content" {
				t.Error("the object is not in the tree")
			}
			received := strings.Join(host.all(), "\n")
			if strings.Contains(received, token) || strings.Contains(received, basic) {
				t.Errorf("the credential left its prefix: %s", received)
			}
			if strings.Contains(received, actionToken) != tc.header {
				t.Errorf("the header of the action was sent to another URL than its href, or not there: %s", received)
			}
			if (tc.class == "") != (received != "") {
				t.Errorf("the other host received %q", received)
			}
			for _, seen := range w.git.TokensSeen("other/repo") {
				if seen != "" {
					t.Error("the credential was sent to another path than its prefix")
				}
			}
		})
	}
}
