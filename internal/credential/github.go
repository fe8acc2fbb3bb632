package credential

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"lockstep/events"
)

const (
	githubAPI     = "https://api.github.com"
	githubTimeout = 30 * time.Second
	patience      = 2 * time.Second // of a caller, which may hold the lease of a repository
	notYet        = 5 * time.Second // delay until it asks again
	unseenFor     = time.Minute     // how long an error is kept for that
	renewBefore   = 5 * time.Minute // before an installation token expires
	dropAfter     = time.Minute     // how long a token is kept that has replaced a refused one
	maxAnswer     = 1 << 20         // bytes
)

// app identifies an installation of a GitHub App.
type app struct{ id, installation, key, api string }

// github requests and caches installation tokens.
type github struct {
	client http.Client

	mu    *sync.Mutex
	slots map[string]*slot // by credential
}

// slot caches one credential's token. Sending to turn locks the other fields.
type slot struct {
	turn    chan struct{} // of size one
	app     app           // that the token is for
	token   string
	expires time.Time
	dropped time.Time // when the last token was
	failed  time.Time // when the last request failed with err
	err     error
	unseen  bool // no caller has waited for err
}

func newGitHub() github {
	return github{
		client: http.Client{
			Timeout: githubTimeout,
			// a redirect could steal the signature
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		mu: new(sync.Mutex), slots: map[string]*slot{},
	}
}

// token returns a token that is valid for at least five minutes. Concurrent calls for the same credential share one
// request and its error. They return early if ctx is done, or with contention if the API takes longer than patience;
// the request goes on, and a later call returns its token or error.
func (g *github) token(ctx context.Context, name string, of app) (string, error) {
	since := time.Now()
	held := g.slot(name)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, &events.Error{
		Disposition: events.Contention, Scope: events.ScopeNone, Class: events.ClassNetwork, RetryAfter: notYet,
		Err: errors.New("GitHub's API has not answered the request for a token yet"),
	})
	defer cancel()
	select {
	case held.turn <- struct{}{}:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	isUnseen := held.unseen && time.Since(held.failed) < unseenFor
	held.unseen = false
	switch {
	case held.app == of && time.Until(held.expires) > renewBefore:
		defer func() { <-held.turn }()
		return held.token, nil
	case held.app == of && (held.failed.After(since) || isUnseen):
		defer func() { <-held.turn }()
		return "", held.err
	}
	var token string
	var err error
	answered := make(chan struct{})
	go func() {
		defer func() { <-held.turn }()
		defer close(answered)
		var expires time.Time
		token, expires, err = g.fetch(context.WithoutCancel(ctx), of)
		held.app, held.token, held.expires = of, token, expires
		if err != nil {
			held.failed, held.err, held.unseen = time.Now(), err, ctx.Err() != nil
		}
	}()
	select {
	case <-answered:
		return token, err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (g *github) slot(name string) *slot {
	g.mu.Lock()
	defer g.mu.Unlock()
	held, ok := g.slots[name]
	if !ok {
		held = &slot{turn: make(chan struct{}, 1)}
		g.slots[name] = held
	}
	return held
}

// forget drops a token, and returns false if it was already replaced. One that has just replaced another is kept for a
// while: a new token takes seconds to be known to all servers of a forge, so that each new one would be refused.
func (g *github) forget(name, token string) bool {
	held := g.slot(name)
	select {
	case held.turn <- struct{}{}:
		defer func() { <-held.turn }()
	case <-time.After(patience):
		return true // it is being replaced
	}
	if held.token != token || held.expires.IsZero() {
		return false
	}
	if time.Since(held.dropped) >= dropAfter {
		held.expires, held.dropped = time.Time{}, time.Now()
	}
	return true
}

var digits = regexp.MustCompile(`^[0-9]{1,20}$`)

// fetch requests a token. See "Generating an installation access token for a GitHub App" in GitHub's documentation.
func (g *github) fetch(ctx context.Context, of app) (token string, expires time.Time, err error) {
	signed, err := of.sign(time.Now())
	if err != nil {
		return "", time.Time{}, err
	}
	api := of.api
	if api == "" {
		api = githubAPI
	}
	base, err := url.Parse(api)
	if err != nil || base.Hostname() == "" || base.Scheme != "https" && base.Scheme != "http" || base.User != nil {
		return "", time.Time{}, events.Errorf(events.Permanent, events.ClassConfig,
			"githubURL is not a valid API URL; want one such as %s", githubAPI)
	}
	if !digits.MatchString(of.installation) {
		return "", time.Time{}, events.Errorf(events.Permanent, events.ClassConfig, "githubInstallationID is not a number")
	}
	at := base.JoinPath("app/installations", of.installation, "access_tokens").String()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, nil)
	if err != nil {
		return "", time.Time{}, events.Errorf(events.Permanent, events.ClassConfig,
			"githubURL is not a valid API URL; want one such as %s", githubAPI)
	}
	req.Header.Set("Authorization", "Bearer "+signed)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	req.Header.Set("User-Agent", "lockstep")
	res, err := g.client.Do(req)
	if err != nil {
		return "", time.Time{}, events.Errorf(events.Retryable, events.ClassNetwork,
			"request a token from GitHub's API at %s: cannot connect; check the network and the settings hosts, "+
				"proxy and ca-file", base.Host)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		return "", time.Time{}, refused(res, base.Host)
	}
	var answer struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&answer); err != nil || answer.Token == "" {
		return "", time.Time{}, events.Errorf(events.Retryable, events.ClassServer,
			"GitHub's API at %s returned no token", base.Host)
	}
	return answer.Token, answer.Expires, nil
}

// refused classifies an error response.
func refused(res *http.Response, host string) error {
	status := res.StatusCode
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusForbidden && isRateLimit(res.Header):
		return events.Errorf(events.Retryable, events.ClassServer, "GitHub's API at %s is rate limited (HTTP %d)", host,
			status)
	case status == http.StatusUnauthorized:
		return events.Errorf(events.Permanent, events.ClassAuth,
			"GitHub's API at %s refused the app's signature (HTTP %d); check githubAppID, githubPrivateKey and this "+
				"machine's clock", host, status)
	case status == http.StatusForbidden, status == http.StatusNotFound, status == http.StatusUnprocessableEntity:
		return events.Errorf(events.Permanent, events.ClassAuth,
			"GitHub's API at %s refused a token for this installation (HTTP %d); check githubInstallationID, "+
				"and that the installation is not suspended", host, status)
	}
	return events.Errorf(events.Retryable, events.ClassServer, "GitHub's API at %s returned HTTP status %d", host, status)
}

func isRateLimit(header http.Header) bool {
	return header.Get("Retry-After") != "" || header.Get("X-RateLimit-Remaining") == "0"
}

// sign returns a JSON Web Token (RFC 7519), signed with RS256, that authenticates the app for nine minutes. It is dated
// one minute back, in case GitHub's clock is behind ours.
func (a app) sign(now time.Time) (string, error) {
	key, err := parseRSA(a.key)
	if err != nil {
		return "", events.Errorf(events.Permanent, events.ClassConfig,
			"githubPrivateKey is invalid; want the app's RSA key in PEM")
	}
	if a.id == "" || strings.ContainsAny(a.id, " \t\r\n") {
		return "", events.Errorf(events.Permanent, events.ClassConfig, "githubAppID is missing or invalid")
	}
	claims, err := json.Marshal(map[string]any{
		"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(9 * time.Minute).Unix(), "iss": a.id,
	})
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	text.WriteString(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)))
	text.WriteByte('.')
	text.WriteString(base64.RawURLEncoding.EncodeToString(claims))
	sum := sha256.Sum256(text.Bytes())
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", events.Errorf(events.Permanent, events.ClassConfig, "githubPrivateKey cannot sign; want the app's RSA key")
	}
	text.WriteByte('.')
	text.WriteString(base64.RawURLEncoding.EncodeToString(signature))
	return text.String(), nil
}

func parseRSA(text string) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("not PEM")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	if key, ok := key.(*rsa.PrivateKey); ok {
		return key, nil
	}
	return nil, errors.New("not an RSA key")
}
