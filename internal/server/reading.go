package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/archive"
	"lockstep/internal/feed"
	"lockstep/internal/git/object"
	gitserve "lockstep/internal/git/serve"
	"lockstep/internal/operate"
	"lockstep/tree"
)

// Reading serves published trees to the operator and to apps with a token. Its zero fields but Tokens and
// Reader are ready to use.
type Reading struct {
	Tokens *access.Tokens
	Reader *access.Reader
	Feed   *feed.Feed // serves results; nil disables it

	MaxStreams int // of results, of which an app has at most half; default [mostStreams]

	Followers *feed.Followers // stores the reports of followers; nil disables it

	// Cells finds the readers of other cells, to which requests for their repositories are forwarded through
	// CellTransport. Optional.
	Cells         CellReaders
	CellTransport http.RoundTripper

	Observer ReadingObserver // optional

	Repos *operate.Repos // shows them to the operator, at a process without open endpoints; optional

	requests slots
	forwards slotsByCell // to readers of other cells
	archives slots
	lists    slots // of repositories
	streams  slots // of results
	scans    access.Turns
	digests  digests
	git      *gitserve.Handler
}

// mount adds the routes. In {repo} a slash is escaped; [plainRepos] escapes those of clients that do not.
func (s *Reading) mount(mux *routes, cfg Config) {
	for route, handle := range map[string]reader{
		"refs": s.listRefs, "archive": s.sendArchive, "files/{path...}": s.sendFile, "tree": s.listFiles,
		"artifact": s.showArtifact,
	} {
		kind, _, _ := strings.Cut(route, "/")
		mux.Handle("GET /api/v1/repos/{repo}/"+route, s.authenticated(cfg, kind, s.limited(handle)))
	}
	mux.Handle("GET /api/v1/results", s.authenticated(cfg, "results", s.sendResults))
	mux.Handle("PUT /api/v1/followers/{name}", s.authenticated(cfg, "followers", s.limited(s.putFollower)))
	if s.Feed != nil && cfg.running != nil {
		// so that clients reconnect to another process while other requests finish
		context.AfterFunc(cfg.running, s.Feed.Close)
	}
	s.mountGit(mux, cfg)
}

// reader answers a request of an identity for a repository. It returns an error if it has sent nothing.
type reader func(w http.ResponseWriter, r *http.Request, from request) error

// request is an authenticated request for a repository.
type request struct {
	who access.Identity
	cfg Config
}

// authenticated calls next for requests of the operator and of apps. kind is what metrics call the requests.
func (s *Reading) authenticated(cfg Config, kind string, next reader) http.Handler {
	gate := GateOf(cfg, s.Tokens)
	return s.observed(kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Authorization")
		w.Header().Set("Cache-Control", "private, no-cache")
		who, err := gate.Identify(r)
		if err != nil {
			s.refuse(w, r, cfg, err)
			return
		}
		if err := s.dispatch(w, r, request{who, cfg}, next); err != nil {
			s.refuse(w, r, cfg, err)
		}
	}))
}

// dispatch calls next, unless the repository is in another cell.
func (s *Reading) dispatch(w http.ResponseWriter, r *http.Request, from request, next reader) error {
	if at, ok := s.elsewhere(r, r.PathValue("repo")); ok {
		return s.forward(w, r, from, at)
	}
	return next(w, r, from)
}

// limited calls next unless the sender, or all together, have too many requests already.
func (s *Reading) limited(next reader) reader {
	return func(w http.ResponseWriter, r *http.Request, from request) error {
		release, err := s.requests.take(from.who.App, maxRequests, maxRequestsApp, errBusy)
		if err != nil {
			return err
		}
		defer release()
		return next(w, r, from)
	}
}

// GateOf returns the gate that authenticates readers of a listener. A request is the operator's if it has the
// API token. If none is configured, and no app ever had a token, it is also if it is local and has no
// Authorization header. A request through a trusted proxy is never local.
func GateOf(cfg Config, tokens *access.Tokens) access.Gate {
	guard := cfg.guard()
	return access.Gate{
		Tokens:   tokens,
		Operator: guard.Is,
		Open: func(r *http.Request) bool {
			return !guard.HasToken() && !cfg.proxied(r) && guard.Check(r) == nil
		},
		Private: cfg.private,
	}
}

// private reports whether nobody on the network can read a request: it came over TLS, or stays on this
// machine. Only a trusted proxy, or one on this machine, can say that the client used TLS.
func (cfg Config) private(r *http.Request) bool {
	proto := r.Header.Values("X-Forwarded-Proto")
	switch {
	case r.TLS != nil:
		return true
	case len(proto) > 0:
		return (cfg.Loopback || cfg.proxied(r)) && len(proto) == 1 && strings.EqualFold(proto[0], "https")
	}
	return cfg.Loopback && !forwarded(r)
}

// refuse responds with an error.
func (s *Reading) refuse(w http.ResponseWriter, r *http.Request, cfg Config, err error) {
	for _, name := range []string{"ETag", "Content-Type", "Content-Disposition", "Lockstep-Ref", "Lockstep-Commit"} {
		w.Header().Del(name)
	}
	status, shown := cfg.refusal(r.Context(), shownPath(r), err)
	p, isProblem := errors.AsType[problem](err)
	switch {
	case status > 0:
	case isProblem:
		status, shown = p.status, p.error
	case isUnreached(err):
		logUnreached(r, cfg, err)
		status = http.StatusBadGateway
	default:
		failWith(w, r, err)
		return
	}
	switch status {
	case http.StatusUnauthorized:
		w.Header().Add("WWW-Authenticate", `Bearer realm="lockstep"`)
		w.Header().Add("WWW-Authenticate", `Basic realm="lockstep"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", retryAfter)
	}
	fail(w, status, shown)
}

// refusal returns the status for an error of access, a tree or the volume, and the error to show. It returns 0 and err
// for another error. what is in the log.
func (cfg Config) refusal(ctx context.Context, what string, err error) (status int, shown error) {
	switch {
	case errors.Is(err, access.ErrNoToken), errors.Is(err, access.ErrUnknownToken):
		return http.StatusUnauthorized, err
	case errors.Is(err, access.ErrClearText):
		return http.StatusForbidden, err
	case errors.Is(err, access.ErrNotFound):
		return http.StatusNotFound, access.ErrNotFound
	case errors.Is(err, access.ErrReplaced), errors.Is(err, access.ErrNoState), errors.Is(err, archive.ErrAltered):
		cfg.Log.WarnContext(ctx, "tree cannot be served", "path", what, "error", err)
		return http.StatusServiceUnavailable, err
	case events.ClassOf(err) == events.ClassVolume || isFileError(err):
		cfg.Log.ErrorContext(ctx, "volume cannot be read", "error", err)
		return http.StatusServiceUnavailable, errors.New("the volume of this process cannot be read; see /readyz?verbose")
	}
	return 0, err
}

// shownPath returns the path of a request for the log, without what a sender may add to a file's name.
func shownPath(r *http.Request) string { return fmt.Sprintf("%.300s", r.URL.Path) }

// isFileError reports whether a file could not be read, for example because too many are open. Redis has no files.
func isFileError(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// selection is the ref that a request selects, by name or by its commit.
type selection struct {
	ref    events.Ref
	commit string // "" for the ref
}

func selectionOf(r *http.Request) (s selection, err error) {
	query := r.URL.Query()
	if text := query.Get("ref"); text != "" {
		if s.ref, err = events.ParseRef(text); err != nil {
			return s, badRequest(fmt.Errorf("ref: %w", err))
		}
	}
	s.commit = query.Get("commit")
	switch {
	case s.commit != "" && (!object.IsID(s.commit) || s.commit != strings.ToLower(s.commit)):
		return s, badRequest(errors.New("commit: want 40 or 64 hexadecimal digits, in lower case"))
	case s.commit != "" && !s.ref.IsZero():
		return s, badRequest(errors.New("ref, commit: give one of them"))
	}
	return s, nil
}

// visible returns what the sender may read of the repository in the request's path.
func (s *Reading) visible(r *http.Request, from request) (access.Visible, error) {
	repo, err := events.ParseRepoPath(r.PathValue("repo"))
	if err != nil {
		return access.Visible{}, access.ErrNotFound
	}
	return s.Reader.Visible(r.Context(), from.who, repo)
}

// opened is the pinned tree of a ref. The caller closes it.
type opened struct {
	*tree.Tree
	ref  access.Ref
	repo events.RepoPath
}

// openTries limits how often open reads the state: between reading it and opening a tree, the ref may be
// published again.
const openTries = 3

// open opens the tree that a request selects.
func (s *Reading) open(r *http.Request, from request) (opened, error) {
	selected, err := selectionOf(r)
	if err != nil {
		return opened{}, err
	}
	for try := 1; ; try++ {
		visible, err := s.visible(r, from)
		if err != nil {
			return opened{}, err
		}
		ref, err := visible.Find(selected.ref)
		if commit := cmp.Or(selected.commit, selected.ref.Commit()); commit != "" && (err != nil || selected.commit != "") {
			ref, err = visible.At(commit)
		} else if err != nil && selected.ref.IsZero() {
			return opened{}, badRequest(errors.New("ref: this token does not read the default branch; " +
				"name one of the refs that GET …/refs lists"))
		}
		if err != nil {
			return opened{}, err
		}
		t, err := s.Reader.Open(r.Context(), visible, ref)
		if err == nil {
			return opened{t, ref, visible.Repo}, nil
		}
		if !errors.Is(err, access.ErrReplaced) || try == openTries {
			return opened{}, err
		}
	}
}

// contents returns the files of a tree that the sender may read.
func (o opened) contents(paths []string) *archive.Contents {
	return archive.New(o.Tree, archive.Options{Paths: paths, Submodules: o.ref.Submodules})
}

// describe sets the headers that name the ref and the commit of a response.
func (o opened) describe(w http.ResponseWriter) {
	w.Header().Set("Lockstep-Ref", o.ref.Ref.String())
	w.Header().Set("Lockstep-Commit", o.ref.Commit)
}

// matches reports whether an If-None-Match header names a strong entity tag.
func matches(r *http.Request, tag string) bool {
	for one := range strings.SplitSeq(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
			return true
		}
	}
	return false
}

// plainRepos escapes the slashes of repositories in paths below /api/v1/repos/, so that
// /api/v1/repos/acme/widgets/archive is the archive of acme/widgets. A repository may have the name of a
// route: the path of one with a state is not split.
func plainRepos(cfg Config, next http.Handler) http.Handler {
	if cfg.Reading == nil {
		return next
	}
	const base = "/api/v1/repos/"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if escaped, ok := escapeGit(r.URL.Path); ok {
			r.URL.RawPath = escaped
		}
		rest, ok := strings.CutPrefix(r.URL.EscapedPath(), base)
		segments := strings.Split(rest, "/")
		if !ok || rest == "" || strings.Contains(strings.ToLower(segments[0]), "%2f") || isUnclean(segments) {
			next.ServeHTTP(w, r)
			return
		}
		at := routeIn(segments)
		if at < len(segments) && isRepo(r.Context(), cfg, r.URL.Path[len(base):]) {
			at = len(segments)
		}
		r.URL.RawPath = base + strings.Join(append([]string{strings.Join(segments[:at], "%2F")}, segments[at:]...), "/")
		next.ServeHTTP(w, r)
	})
}

// isUnclean reports whether the mux redirects a path with these segments.
func isUnclean(segments []string) bool {
	last := len(segments) - 1
	return slices.Contains(segments[:last], "") || slices.Contains(segments, ".") || slices.Contains(segments, "..")
}

// routeIn returns the index of the first segment after a repository, owner/name at least.
func routeIn(segments []string) int {
	for i := 2; i < len(segments); i++ {
		switch segments[i] {
		case "refs", "archive", "tree", "artifact":
			if i == len(segments)-1 {
				return i
			}
		case "files":
			if i < len(segments)-1 {
				return i
			}
		}
	}
	return len(segments)
}

func isRepo(ctx context.Context, cfg Config, path string) bool {
	repo, err := events.ParseRepoPath(path)
	if err != nil || cfg.Repos == nil {
		return false
	}
	known, _, err := cfg.Repos.Load(ctx, repo)
	return err == nil && !known.IsZero()
}
