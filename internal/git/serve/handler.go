package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Config configures a Handler.
type Config struct {
	Source Source // required

	// TempDir is where packs are kept while they are sent. Defaults to the temporary folder of the system.
	// Files in it are unlinked, so a crash leaves none behind. If it cannot be used, a pack proceeds at the
	// pace of its slowest client, with 384 KiB in memory.
	TempDir string
	// SpoolBytes is the maximum size of a pack's file in TempDir. Defaults to 1 GiB. Clients that share a
	// longer pack proceed at the pace of the slowest of them.
	SpoolBytes int64
	// SpoolTotal is the maximum total size of all files in TempDir, not counting the first 1 MiB of each. The files of one
	// sender use at most a quarter of it. Once it is used up, no file grows. Defaults to 16 GiB.
	SpoolTotal int64
	// MaxRequests is the number of requests served at a time, of which one sender has at most a quarter.
	// Others get 503. Defaults to 1,000.
	MaxRequests int
	// MaxPacks is the number of packs made, and requests negotiated, at a time. Defaults to the number of
	// CPUs, but at least 2.
	MaxPacks int
	// Stall is how long a client may take for the next part of its request, or to receive 64 KiB. Defaults to one minute.
	Stall time.Duration
	// MaxTime is how long a request may take. Defaults to one hour.
	MaxTime time.Duration

	Log     *slog.Logger // optional
	Observe func(Served) // called after each request with a valid path; optional
}

// Served describes a request after it was served.
type Served struct {
	Repo     string // empty if the source did not return one
	Command  string // "info/refs", "ls-refs" or "fetch"
	Protocol int    // 0 or 2
	Bytes    int64  // of the pack, as sent to this client
	Shared   bool   // the pack was made for another client at the same time
	Took     time.Duration
	Err      error // nil if the client got a complete answer
}

// Handler serves repositories to Git clients, read-only. It is safe for concurrent use. It moves the
// deadlines of connections: the server needs a WriteTimeout and an IdleTimeout, which apply again from the
// next request on.
type Handler struct {
	cfg     Config
	shared  *sharing
	serving chan struct{}
	working chan struct{}

	mu        sync.Mutex
	senders   map[string]int // requests being served, by sender
	lines     int            // see hold
	linesOf   map[string]int // by sender
	resting   int            // packs that wait for their clients
	restingOf map[string]int // by sender
}

// New returns a Handler. The caller closes it.
func New(cfg Config) (*Handler, error) {
	if cfg.Source == nil {
		return nil, errors.New("serve: Config.Source is required")
	}
	cfg.TempDir = cmp.Or(cfg.TempDir, os.TempDir())
	cfg.SpoolBytes = cmp.Or(cfg.SpoolBytes, 1<<30)
	cfg.SpoolTotal = cmp.Or(cfg.SpoolTotal, 16<<30)
	cfg.MaxRequests = cmp.Or(cfg.MaxRequests, 1000)
	cfg.MaxPacks = cmp.Or(cfg.MaxPacks, max(2, runtime.GOMAXPROCS(0)))
	cfg.Stall = cmp.Or(cfg.Stall, time.Minute)
	cfg.MaxTime = cmp.Or(cfg.MaxTime, time.Hour)
	if cfg.SpoolBytes < 0 || cfg.SpoolTotal < 0 || cfg.MaxRequests < 0 || cfg.MaxPacks < 0 || cfg.Stall < 0 ||
		cfg.MaxTime < 0 {
		return nil, errors.New("serve: a limit is negative")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	h := &Handler{
		cfg:     cfg,
		serving: make(chan struct{}, cfg.MaxRequests),
		working: make(chan struct{}, cfg.MaxPacks),

		senders: map[string]int{}, linesOf: map[string]int{}, restingOf: map[string]int{},
	}
	file, err := spoolFile(cfg.TempDir, spoolReserve)
	if err != nil {
		cfg.Log.Warn("no usable temporary folder, packs are sent at the pace of their slowest client; set TMPDIR",
			"dir", cfg.TempDir, "error", err)
	} else {
		_ = file.Close()
	}
	h.shared = newSharing(cfg.TempDir, cfg.SpoolBytes, cfg.SpoolTotal)
	return h, nil
}

// Close stops the packs in progress, whose clients get an error, and waits for them. New fetches are refused.
func (h *Handler) Close() { h.shared.close() }

// exchange is one request and its response.
type exchange struct {
	*Handler
	ctx  context.Context
	r    *http.Request
	out  *response
	repo *Repo // nil once its refs are no longer needed

	sender string
	held   int // see hold
	Served
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	service, status := route(r)
	if status != 0 {
		http.Error(w, statusText(status), status)
		return
	}
	select {
	case h.serving <- struct{}{}:
		defer func() { <-h.serving }()
	default:
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, tooMany, http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.cfg.MaxTime,
		fmt.Errorf("the request took longer than %v", h.cfg.MaxTime))
	defer cancel()
	x := &exchange{Handler: h, ctx: ctx, r: r, out: newResponse(w, h.cfg.Stall, h.cfg.MaxTime)}
	x.Protocol = protocol(r)
	begin := time.Now()
	x.Err = x.serve(service)
	x.Took = time.Since(begin)
	x.report()
	if x.out.broken {
		panic(http.ErrAbortHandler)
	}
}

// route returns the service that a request is for, or a status if it is for none.
func route(r *http.Request) (service string, status int) {
	switch {
	case strings.HasSuffix(r.URL.Path, infoRefs):
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return "", http.StatusMethodNotAllowed
		}
		return infoRefs, 0
	case strings.HasSuffix(r.URL.Path, uploadPack):
		if r.Method != http.MethodPost {
			return "", http.StatusMethodNotAllowed
		}
		return uploadPack, 0
	case strings.HasSuffix(r.URL.Path, "/git-receive-pack"):
		return "", http.StatusForbidden
	}
	return "", http.StatusNotFound
}

func statusText(status int) string {
	if status == http.StatusForbidden {
		return "read-only, over smart HTTP: clone and fetch with git"
	}
	return http.StatusText(status)
}

// protocol returns the version of the protocol that a client prefers, of those that are served.
func protocol(r *http.Request) int {
	for key := range strings.SplitSeq(r.Header.Get("Git-Protocol"), ":") {
		if key == "version=2" {
			return 2
		}
	}
	return 0
}

func (x *exchange) serve(service string) error {
	repo, err := x.cfg.Source.Open(x.ctx, x.r)
	if err != nil {
		x.refuseOpen(err)
		return err
	}
	if err := x.check(service); err != nil {
		x.refuseOpen(err)
		return err
	}
	x.Repo, x.repo, x.sender = repo.Name, repo, repo.Sender
	if !x.enter(x.sender) {
		err := &Refusal{http.StatusServiceUnavailable, tooMany}
		x.refuseOpen(err)
		return err
	}
	defer x.leave(x.sender)
	defer x.release()
	if service == infoRefs {
		x.Command = "info/refs"
		return x.advertise()
	}
	if err := x.command(); err != nil {
		x.fail(err)
		return err
	}
	return nil
}

func (x *exchange) command() error {
	body, err := x.body()
	if err != nil {
		return err
	}
	lines := newPktReader(body)
	lines.hold = x.hold
	if x.Protocol == 2 {
		return x.command2(lines, body)
	}
	return x.fetch0(lines, body)
}

// enter counts a request of a sender, unless the sender already has a quarter of all.
func (h *Handler) enter(sender string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.senders[sender] >= max(1, h.cfg.MaxRequests/4) {
		return false
	}
	h.senders[sender]++
	return true
}

func (h *Handler) leave(sender string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.senders[sender]--; h.senders[sender] == 0 {
		delete(h.senders, sender)
	}
}

// check refuses requests that are not from a Git client.
func (x *exchange) check(service string) error {
	switch {
	case service == infoRefs && x.r.URL.Query().Get("service") != "git-upload-pack":
		return &Refusal{http.StatusForbidden, statusText(http.StatusForbidden)}
	case service == uploadPack && x.r.Header.Get("Content-Type") != "application/x-git-upload-pack-request":
		return &Refusal{http.StatusUnsupportedMediaType, http.StatusText(http.StatusUnsupportedMediaType)}
	}
	return nil
}

// refuseOpen answers a request that is refused as a whole.
func (x *exchange) refuseOpen(err error) {
	refused, ok := errors.AsType[*Refusal](err)
	if !ok {
		refused = &Refusal{http.StatusServiceUnavailable, unreadable}
	}
	switch refused.Status {
	case http.StatusUnauthorized:
		x.out.Header().Set("WWW-Authenticate", `Basic realm="lockstep", charset="UTF-8"`)
	case http.StatusServiceUnavailable:
		x.out.Header().Set("Retry-After", retryAfter)
	}
	http.Error(x.out, refused.Text, refused.Status)
}

const (
	unreadable = "the repository cannot be read at the moment: try again"
	tooMany    = "too many requests at a time: try again"
	retryAfter = "5" // seconds
)

// clientText returns the text of an error as sent to the client.
func clientText(err error) string {
	if refused, ok := errors.AsType[*refusal](err); ok {
		return refused.text
	}
	if refused, ok := errors.AsType[*Refusal](err); ok {
		return refused.Text
	}
	return unreadable
}

// fail sends an error to the client, as far as the protocol still allows.
func (x *exchange) fail(err error) {
	if x.out.inPack { // see stream
		return
	}
	x.drain(&bodyReader{in: x.r.Body, progress: x.out.progressRead})
	var w pktWriter
	w.text("ERR %s", clientText(err))
	_ = x.result(&w) // the client may have left
}

// result sends lines of a response.
func (x *exchange) result(w *pktWriter) error {
	x.out.contentType("application/x-git-upload-pack-result")
	defer w.Reset()
	_, err := x.out.Write(w.Bytes())
	return err
}

func (x *exchange) report() {
	level := slog.LevelDebug
	if x.Err != nil && clientText(x.Err) == unreadable && x.r.Context().Err() == nil {
		level = slog.LevelWarn
	}
	attributes := []slog.Attr{
		slog.String("repo", x.Repo), slog.String("command", x.Command), slog.Int("protocol", x.Protocol),
		slog.Int64("bytes", x.Bytes), slog.Bool("shared", x.Shared), slog.Duration("took", x.Took),
	}
	if x.Err != nil {
		attributes = append(attributes, slog.Any("err", x.Err))
	}
	x.cfg.Log.LogAttrs(x.ctx, level, "git request served", attributes...)
	if x.cfg.Observe != nil {
		x.cfg.Observe(x.Served)
	}
}
