package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"lockstep/events"
	gitserve "lockstep/internal/git/serve"
	"lockstep/internal/watch"
)

// CellReaders finds the readers of cells.
type CellReaders interface {
	Own() string // the name of this process' cell

	// IsHere reports whether a repository is placed in this process' cell.
	IsHere(repo events.RepoPath) bool

	// Of returns the reader of the cell that can serve a repository. ok is false if that is this process' cell.
	Of(ctx context.Context, repo events.RepoPath) (reader CellReader, ok bool)

	// From returns the first cell, in the order of their names, whose name is not less than the given one,
	// and the name of the next one, "" if there is none. ok is false if there is no such cell.
	From(name string) (reader CellReader, next string, ok bool)
}

// CellReader is where the reader of a cell is.
type CellReader struct {
	Cell string
	URL  *url.URL // nil if unknown, or if tokens must not be sent there
}

// cellHeader names a cell, in requests of the readers of other cells: it is for the repositories of that cell only. A
// process of another cell refuses them, so that a wrong URL in the directory does not look like a cell without
// repositories.
const cellHeader = "Lockstep-Cell"

type onlyOwnKey struct{}

// onlyOwn reports whether a request is for the repositories of this process' cell only.
func onlyOwn(r *http.Request) bool { return r.Context().Value(onlyOwnKey{}) != nil }

// forCell serves requests with [cellHeader].
func forCell(cfg Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cell := r.Header.Get(cellHeader)
		switch {
		case cell == "":
			next.ServeHTTP(w, r)
		case cfg.Reading == nil || cfg.Reading.Cells == nil || cfg.Reading.Cells.Own() != cell:
			fail(w, http.StatusMisdirectedRequest,
				errors.New("this process does not serve that cell; see --cell-reader of the cell's processes"))
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), onlyOwnKey{}, true)))
		}
	})
}

// elsewhere returns the reader of another cell that has the repository of a request, if there is one.
func (s *Reading) elsewhere(r *http.Request, repo string) (at CellReader, ok bool) {
	if s.Cells == nil || onlyOwn(r) {
		return CellReader{}, false
	}
	path, err := events.ParseRepoPath(repo)
	if err != nil {
		return CellReader{}, false // none, or invalid
	}
	return s.Cells.Of(r.Context(), path)
}

// placedGit forwards requests for repositories of other cells. Git's handler authenticates itself, so
// forwarded requests are authenticated here.
func (s *Reading) placedGit(cfg Config, next http.Handler) http.Handler {
	gate := GateOf(cfg, s.Tokens)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _ := gitserve.Path(r, gitPath)
		at, ok := s.elsewhere(r, name)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		who, refused := gate.Identify(r)
		if refused != nil {
			next.ServeHTTP(w, r) // refuses as Git expects it
			return
		}
		switch err := s.forward(w, r, request{who, cfg}, at); {
		case isUnreached(err):
			logUnreached(r, cfg, err)
			http.Error(w, err.Error(), http.StatusBadGateway) // Git shows plain text
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

var errNoReader = errors.New("it has none in the directory that tokens may be sent to: run one with --roles reader " +
	"and --cell-reader https://…")

// baseHeader has the scheme and host that the sender of a forwarded request uses, for URLs in the response.
const baseHeader = "Lockstep-Base-Url"

// forward has the reader of another cell respond. A request in progress counts for that cell only, so that
// one that hangs does not use up what the sender may have here.
func (s *Reading) forward(w http.ResponseWriter, r *http.Request, from request, to CellReader) error {
	if to.URL == nil {
		return unreached(to, errNoReader)
	}
	release, err := s.forwards.of(to.Cell).take(from.who.App, maxRequests, maxRequestsApp, errBusy)
	if err != nil {
		return err
	}
	defer release()
	var failed error
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to.URL)
			if strings.HasPrefix(p.In.URL.Path, gitPath) {
				p.Out.URL.RawPath = "" // with plain slashes, as Git sends it: [escapeGit] has escaped them
			}
			p.Out.Header.Set(cellHeader, to.Cell)
			p.Out.Header.Set(baseHeader, from.cfg.baseURL(r))
			// whatever Connection says: without it the request may seem the operator's
			p.Out.Header["Authorization"] = p.In.Header["Authorization"]
		},
		Transport:     s.CellTransport,
		FlushInterval: -1, // Git's progress
		ErrorLog:      slog.NewLogLogger(from.cfg.Log.Handler(), slog.LevelDebug),
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusMisdirectedRequest {
				return errors.New("its URL in the directory is that of another process")
			}
			if resp.StatusCode == http.StatusServiceUnavailable { // see isUnreached
				return errors.New("HTTP 503")
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				failed = unreached(to, err)
			}
		},
	}
	for _, name := range []string{"Vary", "Cache-Control"} {
		w.Header().Del(name) // the response has them
	}
	proxy.ServeHTTP(newPatient(w), r)
	return failed
}

// slotsByCell are slots for each cell.
type slotsByCell struct {
	mu sync.Mutex
	by map[string]*slots
}

func (s *slotsByCell) of(cell string) *slots {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]*slots{}
	}
	if s.by[cell] == nil {
		s.by[cell] = &slots{}
	}
	return s.by[cell]
}

// unreachedError says that the reader of a cell does not answer.
type unreachedError struct {
	cell  string
	cause error
}

func unreached(to CellReader, cause error) error { return &unreachedError{to.Cell, cause} }

func (e *unreachedError) Error() string {
	return fmt.Sprintf("the repository is in cell %s, whose reader does not answer", e.cell)
}

// Unwrap returns the cause, which is for the log.
func (e *unreachedError) Unwrap() error { return e.cause }

// isUnreached reports whether the reader of a cell does not answer. The response is 502, not 503 with
// Retry-After, after which a follower would not ask for other repositories.
func isUnreached(err error) bool {
	_, ok := errors.AsType[*unreachedError](err)
	return ok
}

func logUnreached(r *http.Request, cfg Config, err error) {
	cfg.Log.WarnContext(r.Context(), "request for a repository of another cell failed", "path", shownPath(r),
		"error", err, "cause", errors.Unwrap(err))
}

// cellPage is the place of a page of a list that goes through the cells.
type cellPage struct {
	cell  CellReader
	after string // in the list of that cell
	then  string // the next cell; "" for none
}

// cellPageOf returns the page that a request asks for: the name of a cell, a colon, and the place in its
// list. A cell that was removed meanwhile is followed by the next one; ended is set if there is none.
func (s *Reading) cellPageOf(r *http.Request) (p cellPage, ended bool, err error) {
	name, after, ok := strings.Cut(r.URL.Query().Get("after"), ":")
	if name != "" && !ok {
		return p, false, badRequest(watch.ErrBadAfter)
	}
	if p.cell, p.then, ok = s.Cells.From(name); !ok && name == "" {
		return p, false, problem{errors.New("the directory has no cells"), http.StatusServiceUnavailable}
	}
	if !ok {
		return p, true, nil
	}
	if p.cell.Cell == name {
		p.after = after
	}
	return p, false, nil
}

// next returns the place of the next page, after that of the cell's own list; "" if there is none.
func (p cellPage) next(own string) string {
	switch {
	case own != "":
		return p.cell.Cell + ":" + own
	case p.then != "":
		return p.then + ":"
	}
	return ""
}

// readablePage is a page of the list of repositories that a sender reads.
type readablePage struct {
	Repos   []ReadableRepo `json:"repos"`
	Next    string         `json:"next,omitempty"`
	Missing string         `json:"missing_cell,omitempty"` // cell that does not answer
}

// listElsewhere responds with a page of another cell's list, from its reader.
func (s *Reading) listElsewhere(w http.ResponseWriter, r *http.Request, from request, at cellPage) error {
	release, err := s.lists.take(from.who.App, maxLists, maxListsApp, errBusyLists)
	if err != nil {
		return err
	}
	defer release()
	page, err := s.requestPage(w, r, from, at)
	if refused, ok := errors.AsType[problem](err); ok {
		return refused
	}
	if r.Context().Err() != nil {
		return r.Context().Err()
	}
	if err != nil {
		from.cfg.Log.WarnContext(r.Context(), "a list lacks the repositories of a cell, whose reader does not answer",
			"cell", at.cell.Cell, "error", err)
		page = readablePage{Repos: []ReadableRepo{}, Missing: at.cell.Cell}
	}
	page.Next = at.next(page.Next)
	reply(w, http.StatusOK, page)
	return nil
}

const (
	maxCellPage     = 64 << 20 // bytes
	cellPageTimeout = 20 * time.Second
)

// requestPage requests a page from the reader of a cell. The error is a [problem] if the reader answers that
// the request is bad or to be repeated later, or needs too long: a smaller page may do.
func (s *Reading) requestPage(
	w http.ResponseWriter, r *http.Request, from request, at cellPage,
) (page readablePage, err error) {
	if at.cell.URL == nil {
		return page, errNoReader
	}
	ctx, cancel := context.WithTimeout(r.Context(), cellPageTimeout)
	defer cancel()
	query := r.URL.Query()
	query.Set("after", at.after)
	u := at.cell.URL.JoinPath("/api/v1/repos")
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return page, err
	}
	req.Header["Authorization"] = r.Header["Authorization"]
	req.Header.Set(cellHeader, at.cell.Cell)
	req.Header.Set(baseHeader, from.cfg.baseURL(r))
	resp, err := s.CellTransport.RoundTrip(req)
	if err != nil {
		return page, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		err = json.NewDecoder(io.LimitReader(resp.Body, maxCellPage)).Decode(&page)
	case http.StatusBadRequest:
		return page, badRequest(watch.ErrBadAfter)
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", retryAfter)
		return page, problem{fmt.Errorf("the reader of cell %s: HTTP %d", at.cell.Cell, resp.StatusCode), resp.StatusCode}
	default:
		err = fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	if err != nil && ctx.Err() != nil {
		return page, problem{fmt.Errorf("cell %s: the page is too large; ask for a smaller one", at.cell.Cell),
			http.StatusGatewayTimeout}
	}
	return page, err
}
