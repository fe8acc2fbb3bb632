package wire

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"lockstep/internal/egress"
)

const (
	infoRefsPath   = "/info/refs"
	uploadPackPath = "/git-upload-pack"
)

// httpCarrier sends requests over HTTP. Redirects of the first request are followed, never from https to
// http, and decide where the others go. Credentials do not follow a redirect to another origin.
type httpCarrier struct {
	wire *monitor
	base *url.URL // of the repository
	auth Auth

	redirected bool
	newURL     string // that the server permanently redirects base to; "" for none
}

func (c *httpCarrier) advertise(ctx context.Context) (io.ReadCloser, error) {
	u := c.at(infoRefsPath)
	u.RawQuery = "service=git-upload-pack"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "*/*")
	req.Header.Set("Git-Protocol", "version=2")
	res, err := c.send(req, true, followRedirect)
	if err != nil {
		return nil, err
	}
	if err := c.moveTo(res.Request); err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	return res.Body, nil
}

func (c *httpCarrier) post(ctx context.Context, request []byte, listing, v2 bool) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.at(uploadPackPath).String(), bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	req.Header.Set("Accept", "application/x-git-upload-pack-result")
	// net/http repeats a request on a new connection if the server closed the idle one that it was sent on,
	// but only one that is idempotent. A header without values says so and is not sent.
	req.Header["Idempotency-Key"] = []string{}
	if v2 {
		req.Header.Set("Git-Protocol", "version=2")
	}
	res, err := c.send(req, listing, refuseRedirect)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

func (c *httpCarrier) send(
	req *http.Request, listing bool, redirect func(*http.Request, []*http.Request) error,
) (*http.Response, error) {
	req.Header.Set("User-Agent", capability.DefaultAgent())
	c.auth.setHeader(req)
	client := &http.Client{Transport: exchange{c.wire, listing}, CheckRedirect: redirect}
	return client.Do(req)
}

// at returns the URL of a path below the repository.
func (c *httpCarrier) at(path string) *url.URL {
	u := *c.base
	u.Path += path
	if u.RawPath != "" {
		u.RawPath += path
	}
	return &u
}

// moveTo continues at the URL that answered the first request.
func (c *httpCarrier) moveTo(answered *http.Request) error {
	u := answered.URL
	moved := *u
	var ok bool
	if moved.Path, ok = strings.CutSuffix(u.Path, infoRefsPath); !ok {
		return errRedirectAway
	}
	moved.RawPath, moved.RawQuery, moved.Fragment, moved.User = strings.TrimSuffix(u.RawPath, infoRefsPath), "", "", nil
	if moved.String() == c.base.String() {
		return nil
	}
	if !mayFollow(c.base, &moved) {
		c.auth = Auth{}
	}
	c.base, c.redirected = &moved, true
	if isPermanent(answered) {
		c.newURL = moved.String()
	}
	return nil
}

// isPermanent reports whether all redirects that led to a request are permanent.
func isPermanent(req *http.Request) bool {
	for res := req.Response; res != nil; res = res.Request.Response {
		if res.StatusCode != http.StatusMovedPermanently && res.StatusCode != http.StatusPermanentRedirect {
			return false
		}
	}
	return true
}

// refuseRedirect is http.Client.CheckRedirect. The monitor has refused the redirect already.
func refuseRedirect(*http.Request, []*http.Request) error { return errRedirectFetch }

// followRedirect is http.Client.CheckRedirect for the first request. The monitor has checked the URL. It
// removes the credential once a redirect has left the origin.
func followRedirect(req *http.Request, via []*http.Request) error {
	// net/http restores the headers of the first request at each redirect, hence the look at all of them.
	for _, hop := range append(via[1:len(via):len(via)], req) {
		if !mayFollow(via[0].URL, hop.URL) {
			kept := http.Header{}
			for _, name := range []string{"User-Agent", "Accept", "Git-Protocol"} {
				kept[name] = req.Header[name]
			}
			req.Header, req.URL.User = kept, nil
			break
		}
	}
	return nil
}

// mayFollow reports whether a credential for one URL may be sent to another: to the same origin, or from http
// to https on the default ports.
func mayFollow(from, to *url.URL) bool {
	if from.Scheme != to.Scheme && (egress.PortOf(from) != "80" || egress.PortOf(to) != "443") {
		return false
	}
	return egress.SameOrigin(from, to)
}

func (c *httpCarrier) isReady() bool     { return true }
func (c *httpCarrier) canPost() bool     { return !c.redirected }
func (c *httpCarrier) moved() string     { return c.newURL }
func (c *httpCarrier) abort(error, bool) {}
func (c *httpCarrier) close()            {}
