package volume

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"lockstep/events"
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

	listed := signed
	remote := w.relisted(func() (from, to string) { return signed, listed })
	sync := func(ref string) (c Candidate, res SyncResult, err error) {
		req := w.request(ref)
		req.URL = remote
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

// TestCheckIsOfTheFetchedCommit has a server that lists, for a tag of another commit, one that needs no check.
func TestCheckIsOfTheFetchedCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	verified := w.create(map[string]string{"a": "1"})
	evil := w.push(map[string]string{"a": "evil"})
	testenv.Must(w.git.Git(t.Context(), widgets, "", "tag", "-a", "-m", "one", "v1"))(t)
	req := w.request("refs/tags/v1")
	req.URL = w.relisted(func() (from, to string) { return evil, verified })
	refusal := events.Errorf(events.Permanent, events.ClassRefused, "not signed")
	req.Check = func(tip Tip, _ bool) Check {
		if tip.Commit == verified {
			return nil
		}
		return func(context.Context, Candidate) error { return refusal }
	}
	if res, err := w.volume.Sync(t.Context(), req); !errors.Is(err, refusal) {
		t.Errorf("published %.12s without a check, %v", res.After, err)
	}
}

// relisted returns the URL of a server that lists another commit for tags of one.
func (w *world) relisted(commits func() (from, to string)) string {
	server := testenv.Must(url.Parse(w.git.URL(widgets)))(w.t)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: server.Scheme, Host: server.Host})
	proxy.ModifyResponse = func(res *http.Response) error {
		from, to := commits()
		body, err := io.ReadAll(res.Body)
		res.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte("peeled:"+from), []byte("peeled:"+to))))
		return err
	}
	remote := httptest.NewServer(proxy)
	w.t.Cleanup(remote.Close)
	return remote.URL + server.Path
}
