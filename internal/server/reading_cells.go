package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	gitserve "lockstep/internal/git/serve"
	"lockstep/internal/watch"
)

// CellReaders finds the readers of the other cells.
type CellReaders interface {
	// Of returns the reader of the cell that has a repository. ok is false if that is this process' cell.
	Of(repo events.RepoPath) (reader CellReader, ok bool, err error)

	// At returns the reader of the cell with an index, in the order of lists. own reports whether that is this process' cell. ok is false
	// beyond the last one.
	At(index int) (reader CellReader, own, ok bool)
}

// CellReader is where the reader of a cell is.
type CellReader struct {
	Cell string
	URL  *url.URL // nil if unknown, or if it must not be sent a token
}

// HopsHeader counts how often a request for a repository was forwarded to the reader of another cell. A process that has received one twice
// serves it itself: once is enough but for the second in which the copies of the directory differ.
const HopsHeader = "Lockstep-Hops"

// MaxHops is the value of [HopsHeader] of a request that is not to be forwarded.
const MaxHops = 2

var errNoReader = errors.New("it has none in the directory that tokens may be sent to: run one with --roles reader and --cell-reader https://…")

func hopsOf(r *http.Request) int {
	hops, err := strconv.Atoi(r.Header.Get(HopsHeader))
	if err != nil || hops < 0 {
		return 0
	}
	return hops
}

// elsewhere returns the reader of another cell that has the repository of a request, if there is one.
func (s *Reading) elsewhere(r *http.Request, repo string) (at CellReader, ok bool, err error) {
	if s.Cells == nil || hopsOf(r) >= MaxHops {
		return CellReader{}, false, nil
	}
	path, err := events.ParseRepoPath(repo)
	if err != nil {
		return CellReader{}, false, nil // which next refuses
	}
	return s.Cells.Of(path)
}

// placed forwards requests for repositories of other cells to their readers.
func (s *Reading) placed(next reader) reader {
	return func(w http.ResponseWriter, r *http.Request, from request) error {
		at, ok, err := s.elsewhere(r, r.PathValue("repo"))
		switch {
		case err != nil:
			return err
		case ok:
			return s.forward(w, r, at)
		}
		return next(w, r, from)
	}
}

// placedGit does that for Git, whose handler authenticates itself.
func (s *Reading) placedGit(cfg Config, next http.Handler) http.Handler {
	gate := GateOf(cfg, s.Tokens)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _ := gitserve.Path(r, gitPath)
		at, ok, err := s.elsewhere(r, name)
		if err == nil && !ok {
			next.ServeHTTP(w, r)
			return
		}
		who, refused := gate.Identify(r)
		if refused != nil {
			next.ServeHTTP(w, r) // refuses as Git expects it
			return
		}
		if err == nil {
			err = s.limited(w, r, request{who, cfg}, func(w http.ResponseWriter, r *http.Request, _ request) error { return s.forward(w, r, at) })
		}
		switch {
		case isUnreached(err):
			logUnreached(r, cfg, err)
			http.Error(w, err.Error(), http.StatusBadGateway) // Git shows plain text
		case err != nil:
			s.refuse(w, r, cfg, err)
		}
	})
}

// forward has the reader of another cell respond.
func (s *Reading) forward(w http.ResponseWriter, r *http.Request, to CellReader) error {
	if to.URL == nil {
		return unreached(to, errNoReader)
	}
	var failed error
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to.URL)
			if strings.HasPrefix(p.In.URL.Path, gitPath) {
				p.Out.URL.RawPath = "" // with plain slashes, as Git sends it: [escapeGit] has escaped them
			}
			p.Out.Header.Set(HopsHeader, strconv.Itoa(hopsOf(p.In)+1))
		},
		Transport:     s.CellTransport,
		FlushInterval: -1, // Git's progress
		ErrorLog:      log.New(io.Discard, "", 0),
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

// isUnreached reports whether the reader of a cell does not answer. The response is 502, not 503 with Retry-After, after which a follower
// would not ask for other repositories.
func isUnreached(err error) bool {
	_, ok := errors.AsType[*unreachedError](err)
	return ok
}

func logUnreached(r *http.Request, cfg Config, err error) {
	cfg.Log.WarnContext(r.Context(), "request for a repository of another cell failed", "path", r.URL.Path, "error", err, "cause", errors.Unwrap(err))
}

// cellPage is the place of a page of a list that goes through the cells.
type cellPage struct {
	index int
	after string // in the list of that cell
	cell  CellReader
	own   bool // it is this process' cell
	last  bool // no cell follows
}

// cellPageOf returns the page that a request asks for. It begins with the index of the cell and a colon.
func (s *Reading) cellPageOf(r *http.Request) (p cellPage, err error) {
	if text := r.URL.Query().Get("after"); text != "" {
		index, after, ok := strings.Cut(text, ":")
		if p.index, err = strconv.Atoi(index); err != nil || !ok || p.index < 0 {
			return p, badRequest(watch.ErrBadAfter)
		}
		p.after = after
	}
	var ok bool
	if p.cell, p.own, ok = s.Cells.At(p.index); !ok { // cells have been removed since
		return cellPage{own: true, last: true}, badRequest(watch.ErrBadAfter)
	}
	_, _, more := s.Cells.At(p.index + 1)
	p.last = !more
	return p, nil
}

// next returns the place of the next page, after that of the cell's own list; "" if there is none.
func (p cellPage) next(own string) string {
	switch {
	case own != "":
		return strconv.Itoa(p.index) + ":" + own
	case p.last:
		return ""
	}
	return strconv.Itoa(p.index+1) + ":"
}

// readablePage is a page of the list of repositories that a sender reads.
type readablePage struct {
	Repos   []ReadableRepo `json:"repos"`
	Next    string         `json:"next,omitempty"`
	Missing string         `json:"missing_cell,omitempty"` // cell that does not answer
}

// listElsewhere responds with a page of another cell's list, from its reader.
func (s *Reading) listElsewhere(w http.ResponseWriter, r *http.Request, from request, at cellPage) error {
	page, err := s.requestPage(r, at)
	switch {
	case r.Context().Err() != nil:
		return r.Context().Err()
	case err != nil:
		from.cfg.Log.WarnContext(r.Context(), "a list lacks the repositories of a cell, whose reader does not answer", "cell", at.cell.Cell, "error", err)
		page = readablePage{Repos: []ReadableRepo{}, Missing: at.cell.Cell}
	}
	for i := range page.Repos {
		page.Repos[i].Git = from.gitURL(r, page.Repos[i].Repo)
	}
	page.Next = at.next(page.Next)
	reply(w, http.StatusOK, page)
	return nil
}

const (
	maxCellPage     = 64 << 20 // bytes
	cellPageTimeout = 10 * time.Second
)

func (s *Reading) requestPage(r *http.Request, at cellPage) (page readablePage, err error) {
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
	req.Header.Set(HopsHeader, strconv.Itoa(MaxHops))
	resp, err := s.CellTransport.RoundTrip(req)
	if err != nil {
		return page, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return page, fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	return page, json.NewDecoder(io.LimitReader(resp.Body, maxCellPage)).Decode(&page)
}
