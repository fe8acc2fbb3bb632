package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"lockstep/internal/forge"
	"lockstep/internal/intake"
)

const (
	maxHook    = 25 << 20  // bytes per delivery; GitHub's limit
	hookMemory = 256 << 20 // bytes of all deliveries in flight
)

// Hooks receives webhooks.
type Hooks struct {
	Sources *forge.Sources
	Intake  Intake
	Observe func(kind, outcome string, took time.Duration) // called at the end of each request; optional
	Record  func(intake.Received)                          // called at the end of each request; optional
}

// Intake turns deliveries into changes. [intake.Intake] implements it.
type Intake interface {
	Take(ctx context.Context, src forge.Source, d forge.Delivery) (intake.Outcome, error)
}

type hookAnswer struct {
	Delivery  string `json:"delivery,omitempty"`
	Accepted  int    `json:"accepted,omitempty"`  // number of changes published
	Spooled   bool   `json:"spooled,omitempty"`   // stored on disk until Redis is available
	Duplicate bool   `json:"duplicate,omitempty"` // already accepted before
	Ignored   string `json:"ignored,omitempty"`   // why it caused no change
	Pong      bool   `json:"pong,omitempty"`      // it was a ping
}

// receiveHook handles webhook deliveries. It logs one line per delivery, containing only verified data.
func receiveHook(hooks Hooks, cfg Config) http.Handler {
	log := cfg.Log
	memory := newBudget(hookMemory)
	if hooks.Observe == nil {
		hooks.Observe = func(string, string, time.Duration) {}
	}
	if hooks.Record == nil {
		hooks.Record = func(intake.Received) {}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		src, ok, err := hooks.Sources.Get(r.PathValue("source"))
		if !ok {
			refuseUnread(w)
			fail(w, http.StatusNotFound, errors.New("no such webhook source"))
			hooks.Observe("", "unknown", time.Since(start))
			hooks.Record(intake.Received{Source: r.PathValue("source"), Outcome: "unknown", Why: "no such webhook source"})
			return
		}
		h := hook{w: w, r: r, src: src, log: log, received: intake.Received{Source: src.Name, Forge: string(src.Kind)}}
		if err != nil {
			log.ErrorContext(r.Context(), "webhook source cannot be read", "error", err)
			refuseUnread(w)
			h.unavailable("this source's configuration cannot be read at the moment; try again")
		} else {
			sender := Network(ClientAddr(r, cfg.Proxies))
			h.receive(hooks.Intake, &body{w: w, r: r, memory: memory, source: src.Name, sender: sender}, cfg.Tracer, start)
		}
		hooks.Observe(string(src.Kind), h.outcome, time.Since(start))
		h.received.Outcome = h.outcome
		hooks.Record(h.received)
	})
}

type hook struct {
	w       http.ResponseWriter
	r       *http.Request
	src     forge.Source
	log     *slog.Logger
	outcome string

	received intake.Received
}

func (h *hook) receive(in Intake, from *body, tracer trace.Tracer, start time.Time) {
	if forge.IsUnsignedTest(h.src, h.r.Header) { // answered unread and not recorded, since anybody can send it
		refuseUnread(h.w)
		h.outcome = "ping"
		reply(h.w, http.StatusOK, hookAnswer{Pong: true})
		return
	}
	// costs the sender a connection, and us nothing more
	if err := forge.Precheck(h.src, h.r.Header, time.Now()); err != nil {
		refuseUnread(h.w)
		h.refuse(http.StatusUnauthorized, "unauthorized", err)
		return
	}
	text, err := from.read()
	defer from.release()
	if err != nil {
		if !errors.Is(err, errTooLong) { // net/http closes that connection by itself
			refuseUnread(h.w)
		}
		h.refuseBody(err)
		return
	}
	d, err := forge.Receive(h.src, h.r.Header, text, time.Now())
	switch {
	case errors.Is(err, forge.ErrUnauthorized):
		h.refuse(http.StatusUnauthorized, "unauthorized", err)
		return
	case err != nil:
		h.refuse(http.StatusBadRequest, "unreadable", err)
		return
	}
	h.received.Verified, h.received.Event, h.received.Delivery = true, d.Event, d.ID
	h.received.Repo = intake.Repo(d)
	span := h.trace(tracer, start, d)
	defer span.End()
	if d.Ping {
		h.done(d, "ping", 0, "")
		reply(h.w, http.StatusOK, hookAnswer{Delivery: d.ID, Pong: true})
		return
	}
	out, err := in.Take(h.r.Context(), h.src, d)
	span.SetAttributes(attribute.String("lockstep.outcome", out.Result), attribute.Int("lockstep.changes", out.Changes))
	if err != nil {
		setStatus(span, http.StatusServiceUnavailable)
		h.log.ErrorContext(h.r.Context(), "webhook not accepted", "source", h.src.Name, "event", d.Event, "delivery", d.ID,
			"repo", intake.Repo(d), "error", err)
		h.unavailable("the delivery could be stored neither in Redis nor on disk; try again")
		return
	}
	setStatus(span, http.StatusAccepted)
	h.received.Delivery, h.received.Unwatched = out.Delivery, out.Unwatched
	h.done(d, out.Result, out.Changes, out.Why)
	reply(h.w, http.StatusAccepted, hookAnswer{
		Delivery: out.Delivery, Accepted: out.Changes, Ignored: out.Why,
		Spooled: out.Result == intake.Spooled, Duplicate: out.Result == intake.Duplicate,
	})
}

// done logs the outcome of a verified delivery.
func (h *hook) done(d forge.Delivery, outcome string, changes int, why string) {
	h.outcome, h.received.Changes, h.received.Why = outcome, changes, why
	if ctx := h.r.Context(); h.log.Enabled(ctx, slog.LevelInfo) {
		h.log.InfoContext(ctx, "webhook handled", "source", h.src.Name, "event", d.Event, "delivery", d.ID,
			"repo", intake.Repo(d), "outcome", outcome, "changes", changes, "why", why)
	}
}

func (h *hook) refuseBody(err error) {
	switch {
	case errors.Is(err, errTooLong):
		h.refuse(http.StatusRequestEntityTooLarge, "too_long", fmt.Errorf("the body is longer than %d bytes", maxHook))
	case errors.Is(err, errNoMemory):
		h.w.Header().Set("Retry-After", "1")
		h.refuse(http.StatusTooManyRequests, "too_many", errors.New("too many deliveries at once; try again"))
	case errors.Is(err, errTooSlow):
		h.refuse(http.StatusRequestTimeout, "too_slow",
			fmt.Errorf("the body did not arrive in time; send at least %d KiB per second", bodyRate>>10))
	default:
		h.refuse(http.StatusBadRequest, "unreadable", errors.New("the body could not be read"))
	}
}

// refuse responds to a delivery that is not processed. It logs nothing from the request, because its sender
// is unverified.
func (h *hook) refuse(status int, outcome string, err error) {
	h.outcome, h.received.Why = outcome, err.Error()
	h.log.InfoContext(h.r.Context(), "webhook refused", "source", h.src.Name, "outcome", outcome, "error", err)
	fail(h.w, status, err)
}

func (h *hook) unavailable(why string) {
	h.outcome, h.received.Why = "unavailable", why
	h.w.Header().Set("Retry-After", retryAfter)
	fail(h.w, http.StatusServiceUnavailable, errors.New(why))
}
