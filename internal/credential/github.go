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
	renewBefore   = 5 * time.Minute // an installation's token expires
	maxAnswer     = 1 << 20         // bytes
)

// app is an installation of a GitHub App, and how it signs in.
type app struct{ id, installation, key, api string }

// github gets tokens for installations, and keeps them in memory.
type github struct {
	client http.Client

	mu    *sync.Mutex
	slots map[string]*slot // by credential
}

// slot holds one credential's token. Whoever has taken from turn may use the rest.
type slot struct {
	turn    chan struct{} // of size one
	app     app           // that the token is for
	token   string
	expires time.Time
	failed  time.Time // when the latest request did, with err
	err     error
}

func newGitHub() github {
	return github{
		client: http.Client{
			Timeout:       githubTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it has a signature to lose
		},
		mu: new(sync.Mutex), slots: map[string]*slot{},
	}
}

// token returns a token that is good for five minutes at least. Others who want one of the same
// credential meanwhile wait for it, until ctx is done; when it cannot be had, they do not ask once more.
func (g *github) token(ctx context.Context, name string, of app) (string, error) {
	since := time.Now()
	held := g.slot(name)
	select {
	case held.turn <- struct{}{}:
		defer func() { <-held.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	switch {
	case held.app == of && time.Until(held.expires) > renewBefore:
		return held.token, nil
	case held.app == of && held.failed.After(since):
		return "", held.err
	}
	token, expires, err := g.fetch(ctx, of)
	if err != nil {
		if ctx.Err() == nil {
			held.app, held.expires, held.failed, held.err = of, time.Time{}, time.Now(), err
		}
		return "", err
	}
	held.app, held.token, held.expires = of, token, expires
	return token, nil
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

// forget lets go of a token, unless it has been exchanged for another already.
func (g *github) forget(name, token string) bool {
	held := g.slot(name)
	held.turn <- struct{}{} // for as long as a request takes at most
	defer func() { <-held.turn }()
	if held.token != token || held.expires.IsZero() {
		return false
	}
	held.expires = time.Time{}
	return true
}

var digits = regexp.MustCompile(`^[0-9]{1,20}$`)

// fetch asks the API for a token. See "Generating an installation access token for a GitHub App" in
// GitHub's documentation.
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
		return "", time.Time{}, events.Errorf(events.Permanent, events.ClassConfig, "its githubURL is no URL of an API; want one as %s", githubAPI)
	}
	if !digits.MatchString(of.installation) {
		return "", time.Time{}, events.Errorf(events.Permanent, events.ClassConfig, "its githubInstallationID is no number")
	}
	at := base.JoinPath("app/installations", of.installation, "access_tokens").String()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, nil)
	if err != nil {
		return "", time.Time{}, events.Errorf(events.Permanent, events.ClassConfig, "its githubURL is no URL of an API; want one as %s", githubAPI)
	}
	req.Header.Set("Authorization", "Bearer "+signed)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	req.Header.Set("User-Agent", "lockstep")
	res, err := g.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return "", time.Time{}, context.Cause(ctx)
		}
		return "", time.Time{}, events.Errorf(events.Retryable, events.ClassNetwork,
			"ask GitHub's API at %s for a token: it cannot be reached; check the network, and the settings hosts, proxy and ca-file", base.Host)
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
		return "", time.Time{}, events.Errorf(events.Retryable, events.ClassServer, "GitHub's API at %s answered with something that is no token", base.Host)
	}
	return answer.Token, answer.Expires, nil
}

// refused classifies an answer that is no token.
func refused(res *http.Response, host string) error {
	status := res.StatusCode
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusForbidden && isRateLimit(res.Header):
		return events.Errorf(events.Retryable, events.ClassServer, "GitHub's API at %s limits how often it is asked (HTTP %d)", host, status)
	case status == http.StatusUnauthorized:
		return events.Errorf(events.Permanent, events.ClassAuth,
			"GitHub's API at %s refused the app's signature (HTTP %d); check githubAppID, githubPrivateKey and this machine's clock", host, status)
	case status == http.StatusForbidden, status == http.StatusNotFound, status == http.StatusUnprocessableEntity:
		return events.Errorf(events.Permanent, events.ClassAuth,
			"GitHub's API at %s gives no token for this installation (HTTP %d); check githubInstallationID, and that it is not suspended", host, status)
	}
	return events.Errorf(events.Retryable, events.ClassServer, "GitHub's API at %s answered with HTTP status %d", host, status)
}

func isRateLimit(header http.Header) bool {
	return header.Get("Retry-After") != "" || header.Get("X-RateLimit-Remaining") == "0"
}

// sign returns a JSON Web Token (RFC 7519), signed with RS256, by which the app is known for nine minutes.
// It is dated a minute back, for GitHub's clock may be behind ours.
func (a app) sign(now time.Time) (string, error) {
	key, err := parseRSA(a.key)
	if err != nil {
		return "", events.Errorf(events.Permanent, events.ClassConfig, "its githubPrivateKey cannot be read; want the app's RSA key in PEM")
	}
	if a.id == "" || strings.ContainsAny(a.id, " \t\r\n") {
		return "", events.Errorf(events.Permanent, events.ClassConfig, "its githubAppID is missing, or is no id")
	}
	claims, err := json.Marshal(map[string]any{"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(9 * time.Minute).Unix(), "iss": a.id})
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
		return "", events.Errorf(events.Permanent, events.ClassConfig, "its githubPrivateKey cannot sign; want the app's RSA key")
	}
	text.WriteByte('.')
	text.WriteString(base64.RawURLEncoding.EncodeToString(signature))
	return text.String(), nil
}

func parseRSA(text string) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("no PEM")
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
