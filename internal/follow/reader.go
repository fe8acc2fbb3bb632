package follow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/egress"
)

// Errors of a [Reader].
var (
	// ErrRefused means that the reader does not accept the token.
	ErrRefused = errors.New("the reader refuses the token")
	// ErrNotFound means that the token does not read a repository.
	ErrNotFound = errors.New("not found, or not watched by the app of the token")
)

// GoneError means that the results after a cursor are no longer kept.
type GoneError struct {
	Cursor string `json:"cursor"` // where to restart, before listing
}

func (e *GoneError) Error() string {
	return "the reader no longer has the results since the last connection"
}

// busyError is a response of a reader, or of a proxy, that asks the client to retry later.
type busyError struct {
	error
	after time.Duration // how long to wait at least
}

// waitOf returns how long to wait before a retry according to an error, at most a minute.
func waitOf(err error) time.Duration {
	if busy, ok := errors.AsType[*busyError](err); ok {
		return min(busy.after, time.Minute)
	}
	return 0
}

// Reader is a client of a process with the role reader. It is safe for concurrent use.
type Reader struct {
	base      string // URL without a trailing slash
	tokenFile string
	http      *http.Client
	timeout   time.Duration
}

// requestTimeout limits all requests except that for results, which does not end.
const requestTimeout = 30 * time.Second

// NewReader returns a client for the reader at a URL. Each request reads the token from the file, so that it
// can be replaced. Tokens need https unless the URL is of this machine. transport may be nil and set later
// with [Reader.Through].
func NewReader(base, tokenFile string) (*Reader, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("%q: want the URL of a reader, such as https://lockstep.example.org", withoutUser(base))
	case u.User != nil:
		return nil, errors.New("the URL carries a user name or a password; put the token into a file and name it " +
			"with --token-file")
	case strings.ContainsAny(base, "?#"):
		return nil, errors.New("the URL has a query or a fragment; want that of a reader, " +
			"such as https://lockstep.example.org")
	case u.Scheme == "http" && !egress.IsLocal(u.Hostname()):
		return nil, errors.New("the token would be sent unencrypted; use https, or http to this machine")
	}
	r := &Reader{base: strings.TrimRight(u.String(), "/"), tokenFile: tokenFile, timeout: requestTimeout,
		http: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}
	_, err = r.Token()
	return r, err
}

// withoutUser returns a URL up to its host, so that errors never repeat a password.
func withoutUser(text string) string {
	if strings.Contains(text, "@") {
		return "…"
	}
	return text
}

// Through sets the transport of the requests.
func (r *Reader) Through(transport http.RoundTripper) { r.http.Transport = transport }

// URL returns the reader's URL, without a trailing slash.
func (r *Reader) URL() string { return r.base }

// GitURLs returns the prefix of the reader's Git URLs, which the token may be sent to.
func (r *Reader) GitURLs() string { return r.base + "/git/" }

// Remote returns the Git URL of a repository.
func (r *Reader) Remote(repo events.RepoPath) string { return r.GitURLs() + repo.String() + ".git" }

const maxToken = 4096 // bytes

// Token returns the current content of the token file.
func (r *Reader) Token() (string, error) {
	token, err := disk.ReadSecret(r.tokenFile)
	switch {
	case err != nil:
		return "", fmt.Errorf("token-file: %w", err)
	case len(token) > maxToken || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
		return "", fmt.Errorf("token-file: %s is not a token: want one line, as printed by lockstep tokens create",
			r.tokenFile)
	}
	return token, nil
}

// Ref is a ref that the token reads.
type Ref struct {
	Ref     events.Ref   `json:"ref"`
	Commit  string       `json:"commit"`
	Default bool         `json:"default"` // it is the default branch
	Depth   events.Depth `json:"depth"`   // history that the reader has
}

// Listed is a repository that the token reads.
type Listed struct {
	Repo events.RepoPath `json:"repo"`
	Refs []Ref           `json:"refs"` // nil if they must be requested separately, as with the API token
}

// Repositories in a page of a list. A reader that takes too long for one is asked for smaller ones.
const (
	maxPage = 100
	minPage = 6
)

// Repos lists the repositories that the token reads. It fails if a cell does not answer: its repositories
// would be missing.
func (r *Reader) Repos(ctx context.Context) (repos []Listed, err error) {
	limit := maxPage
	for next := ""; ; {
		var page struct {
			Repos   []Listed `json:"repos"`
			Next    string   `json:"next"`
			Missing string   `json:"missing_cell"`
		}
		err := r.get(ctx, fmt.Sprintf("/api/v1/repos?limit=%d&after=%s", limit, url.QueryEscape(next)), &page)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && limit > minPage:
			limit = max(minPage, limit/4)
			continue
		case err != nil:
			return nil, fmt.Errorf("list repositories: %w", err)
		case page.Repos == nil: // a reader lists none as []
			return nil, errors.New("list repositories: the response is not that of a reader")
		case page.Missing != "":
			return nil, fmt.Errorf("list repositories: cell %s does not answer", page.Missing)
		}
		repos = append(repos, page.Repos...)
		if page.Next == "" || page.Next == next {
			return repos, nil
		}
		next = page.Next
	}
}

// Refs lists the refs of a repository that the token reads. It returns [ErrNotFound] if there are none.
func (r *Reader) Refs(ctx context.Context, repo events.RepoPath) ([]Ref, error) {
	var list struct {
		Refs []Ref `json:"refs"`
	}
	if err := r.get(ctx, "/api/v1/repos/"+url.PathEscape(repo.String())+"/refs", &list); err != nil {
		return nil, fmt.Errorf("list the refs of %s: %w", repo, err)
	}
	if len(list.Refs) == 0 { // a reader answers 404
		return nil, fmt.Errorf("list the refs of %s: the response is not that of a reader", repo)
	}
	return list.Refs, nil
}

// Report is a follower's report about itself.
type Report struct {
	Cursor  string `json:"cursor"` // position; "" before the first complete copy
	Repos   int    `json:"repos"`
	Behind  int    `json:"behind"` // refs that are not published yet
	Version string `json:"version"`
}

// Report sends a report to the reader.
func (r *Reader) Report(ctx context.Context, name string, report Report) error {
	body, err := json.Marshal(report)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	resp, err := r.send(ctx, http.MethodPut, "/api/v1/followers/"+url.PathEscape(name), body, nil)
	if err != nil {
		return fmt.Errorf("report to the reader: %w", err)
	}
	return resp.Body.Close()
}

const maxResponse = 64 << 20 // bytes

func (r *Reader) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	resp, err := r.send(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	err = json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(into)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("the reader took more than %v: %w", r.timeout, context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("the response is not that of a reader: %w", err)
	}
	return nil
}

// send sends a request with the token, and returns the response if it is a success. The caller closes its body.
func (r *Reader) send(
	ctx context.Context, method, path string, body []byte, header map[string]string,
) (*http.Response, error) {
	token, err := r.Token()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		if urlError, ok := errors.AsType[*url.Error](err); ok {
			err = urlError.Err // the text names the method and the URL
		}
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, failureOf(resp)
}

// failureOf returns the error that describes a failed response.
func failureOf(resp *http.Response) error {
	var problem struct {
		Error  string `json:"error"`
		Cursor string `json:"cursor"`
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	isReader := json.Unmarshal(text, &problem) == nil
	fromReader := func() bool { // not from a proxy
		for _, challenge := range resp.Header.Values("WWW-Authenticate") {
			if strings.Contains(challenge, `realm="lockstep"`) {
				return true
			}
		}
		return false
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized && fromReader():
		return ErrRefused
	case resp.StatusCode == http.StatusGone && isReader:
		return &GoneError{problem.Cursor}
	case resp.StatusCode == http.StatusNotFound && isReader && problem.Error != "":
		return ErrNotFound
	case resp.StatusCode/100 == 3:
		return fmt.Errorf("HTTP %d: the reader redirects; use the URL that it is served at", resp.StatusCode)
	case resp.StatusCode == http.StatusNotFound:
		return errors.New("HTTP 404: this is not the URL of a reader; see docs/following.md")
	case resp.StatusCode == http.StatusGatewayTimeout:
		return fmt.Errorf("HTTP %d: %w", resp.StatusCode, context.DeadlineExceeded)
	}
	err := fmt.Errorf("HTTP %d", resp.StatusCode)
	if problem.Error != "" {
		err = fmt.Errorf("HTTP %d: %.300s", resp.StatusCode, problem.Error)
	}
	if seconds, invalid := strconv.Atoi(resp.Header.Get("Retry-After")); invalid == nil && seconds > 0 {
		return &busyError{err, time.Duration(seconds) * time.Second}
	}
	return err
}
