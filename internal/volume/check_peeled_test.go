package volume

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestTagIsPublishedAtItsOwnCommit has a server that lists another commit for a tag than the tag itself names. What is checked is the
// tag, so its commit must be published.
func TestTagIsPublishedAtItsOwnCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	signed := w.create(map[string]string{"a": "1"})
	testenv.Must(w.git.Git(t.Context(), widgets, "", "tag", "-a", "-m", "one", "v1"))(t)
	tag := strings.TrimSpace(testenv.Must(w.git.Git(t.Context(), widgets, "", "rev-parse", "refs/tags/v1"))(t))

	server, listed := testenv.Must(url.Parse(w.git.URL(widgets)))(t), signed
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: server.Scheme, Host: server.Host})
	proxy.ModifyResponse = func(res *http.Response) error {
		body, err := io.ReadAll(res.Body)
		res.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte("peeled:"+signed), []byte("peeled:"+listed))))
		return err
	}
	remote := httptest.NewServer(proxy)
	t.Cleanup(remote.Close)
	sync := func(ref string) (c Candidate, res SyncResult, err error) {
		req := w.request(ref)
		req.URL = remote.URL + server.Path
		req.Check = func(Tip, bool) Check { return recordCandidate(&c) }
		res, err = w.volume.Sync(t.Context(), req)
		return c, res, err
	}
	if c, res, err := sync("refs/tags/v1"); err != nil || c.Object != tag || res.After != signed {
		t.Fatalf("got %+v, %+v, %v", c, res, err)
	}
	evil := w.push(map[string]string{"a": "evil"})
	if _, _, err := sync(gitserver.Main); err != nil {
		t.Fatal(err)
	}
	listed = evil
	c, res, err := sync("refs/tags/v1")
	if err != nil || c.Object != tag || c.Commit != signed || res.After != signed {
		t.Errorf("published %.12s after a check of %.12s at %.12s, %v; want %.12s", res.After, c.Object, c.Commit, err, signed)
	}
	w.mustRead(res.Path, map[string]string{"a": "1"})
}
