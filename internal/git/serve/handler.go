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
	"time"

	"lockstep/internal/git/object"
	"lockstep/internal/git/pkt"
)

// Config configures a Handler.
type Config struct {
	Source  Source       // required
	Log     *slog.Logger // optional
	Observe func(Served) // called after each request with a valid path; optional

	limits // only tests set them
}

// limits bound what a handler uses. Zero fields have defaults.
type limits struct {
	tempDir     string        // where packs are kept while they are sent; by default the temporary folder of the system
	spoolBytes  int64         // of a pack's file in tempDir; by default 1 GiB
	spoolTotal  int64         // of all files in tempDir, without the first 1 MiB of each; by default 16 GiB
	maxRequests int           // at a time; by default 1,000
	maxPacks    int           // made, and requests negotiated, at a time; by default the number of CPUs, but at least 2
	stall       time.Duration // for the next part of a request, or to receive 64 KiB; by default one minute
	maxTime     time.Duration // for a request; by default one hour
}

func (l limits) withDefaults() limits {
	return limits{
		tempDir:     cmp.Or(l.tempDir, os.TempDir()),
		spoolBytes:  cmp.Or(l.spoolBytes, 1<<30),
		spoolTotal:  cmp.Or(l.spoolTotal, 16<<30),
		maxRequests: cmp.Or(l.maxRequests, 1000),
		maxPacks:    cmp.Or(l.maxPacks, max(2, runtime.GOMAXPROCS(0))),
		stall:       cmp.Or(l.stall, time.Minute),
		maxTime:     cmp.Or(l.maxTime, time.Hour),
	}
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

	requests *quota // being served
	lines    *quota // see hold
	resting  *quota // packs that wait for their clients
}

// New returns a Handler. The caller closes it.
func New(cfg Config) (*Handler, error) {
	if cfg.Source == nil {
		return nil, errors.New("serve: Config.Source is required")
	}
	cfg.limits = cfg.withDefaults()
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	most := int64(restingPerPack * cfg.maxPacks)
	h := &Handler{
		cfg:      cfg,
		shared:   newSharing(cfg.tempDir, cfg.spoolBytes, cfg.spoolTotal),
		serving:  make(chan struct{}, cfg.maxRequests),
		working:  make(chan struct{}, cfg.maxPacks),
		requests: newQuota(int64(cfg.maxRequests), int64(max(1, cfg.maxRequests/4))),
		lines:    newQuota(heldLines, heldLines/4),
		resting:  newQuota(most, most/2),
	}
	file, err := spoolFile(cfg.tempDir, spoolReserve)
	if err != nil {
		cfg.Log.Warn("no usable temporary folder, packs are sent at the pace of their slowest client; set TMPDIR",
			"dir", cfg.tempDir, "error", err)
	} else {
		_ = file.Close()
	}
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
	held   int64 // see hold
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
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.cfg.maxTime,
		fmt.Errorf("the request took longer than %v", h.cfg.maxTime))
	defer cancel()
	x := &exchange{Handler: h, ctx: ctx, r: r, out: newResponse(w, h.cfg.stall, h.cfg.maxTime)}
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
	if !x.requests.take(x.sender, 1) {
		err := &Refusal{http.StatusServiceUnavailable, tooMany}
		x.refuseOpen(err)
		return err
	}
	defer x.requests.give(x.sender, 1)
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
	if errors.Is(err, object.ErrLongHistory) {
		return "the history is too long to be served: use --depth"
	}
	return unreadable
}

// fail sends an error to the client, as far as the protocol still allows.
func (x *exchange) fail(err error) {
	if x.out.inPack { // see stream
		return
	}
	x.drain(&bodyReader{in: x.r.Body, progress: x.out.progressRead})
	var w pkt.Writer
	w.Text("ERR %s", clientText(err))
	_ = x.result(&w) // the client may have left
}

// result sends lines of a response.
func (x *exchange) result(w *pkt.Writer) error {
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
