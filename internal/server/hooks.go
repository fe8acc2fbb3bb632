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
	maxHook   = 25 << 20  // bytes of a delivery, which is as much as GitHub sends
	hooksRoom = 256 << 20 // bytes of all that are being read or worked on
)

// Hooks takes webhooks.
type Hooks struct {
	Sources *forge.Sources
	Intake  Taker
	Observe func(kind, outcome string, took time.Duration) // told how each request ended, and how long it took; nil: nobody is
}

// Taker brings deliveries on their way; an [intake.Intake] does.
type Taker interface {
	Take(ctx context.Context, src forge.Source, d forge.Delivery) (intake.Outcome, error)
}

// hookAnswer is the answer to a delivery that was taken.
type hookAnswer struct {
	Delivery  string `json:"delivery,omitempty"`
	Accepted  int    `json:"accepted,omitempty"`  // so many changes were asked for
	Spooled   bool   `json:"spooled,omitempty"`   // it is on disk, until Redis is back
	Duplicate bool   `json:"duplicate,omitempty"` // it was taken before
	Ignored   string `json:"ignored,omitempty"`   // why nothing comes of it
	Pong      bool   `json:"pong,omitempty"`      // it was a test
}

// takeHook answers one delivery. All that is logged of it has been verified; an outcome is logged once.
func takeHook(hooks Hooks, log *slog.Logger, tracer trace.Tracer) http.Handler {
	room := newBudget(hooksRoom)
	if hooks.Observe == nil {
		hooks.Observe = func(string, string, time.Duration) {}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		src, ok, err := hooks.Sources.Get(r.PathValue("source"))
		if !ok {
			fail(w, http.StatusNotFound, errors.New("there is no such source of webhooks"))
			hooks.Observe("", "unknown", time.Since(began))
			return
		}
		h := hook{w: w, r: r, src: src, log: log}
		if err != nil {
			log.ErrorContext(r.Context(), "a webhook's source cannot be read", "error", err)
			h.unavailable("this source is not set up right now; try again")
		} else {
			h.take(hooks.Intake, room, tracer, began)
		}
		hooks.Observe(string(src.Kind), h.outcome, time.Since(began))
	})
}

// hook is one request.
type hook struct {
	w       http.ResponseWriter
	r       *http.Request
	src     forge.Source
	log     *slog.Logger
	outcome string
}

func (h *hook) take(taker Taker, room *budget, tracer trace.Tracer, began time.Time) {
	body, release, err := room.read(h.w, h.r)
	defer release()
	if err != nil {
		h.refuseBody(err)
		return
	}
	d, err := forge.Receive(h.src, h.r.Header, body, time.Now())
	switch {
	case errors.Is(err, forge.ErrUnauthorized):
		h.refuse(http.StatusUnauthorized, "unauthorized", err)
		return
	case err != nil:
		h.refuse(http.StatusBadRequest, "unreadable", err)
		return
	}
	span := h.trace(tracer, began, d)
	defer span.End()
	if d.Ping {
		h.done(d, "ping", 0, "")
		reply(h.w, http.StatusOK, hookAnswer{Delivery: d.ID, Pong: true})
		return
	}
	out, err := taker.Take(h.r.Context(), h.src, d)
	span.SetAttributes(attribute.String("lockstep.outcome", out.Result), attribute.Int("lockstep.changes", out.Changes))
	if err != nil {
		answered(span, http.StatusServiceUnavailable)
		h.log.ErrorContext(h.r.Context(), "webhook not taken", "source", h.src.Name, "event", d.Event, "delivery", d.ID,
			"repo", intake.Repo(d).String(), "error", err)
		h.unavailable("neither Redis nor the disk takes the delivery now; try again")
		return
	}
	answered(span, http.StatusAccepted)
	h.done(d, out.Result, out.Changes, out.Why)
	reply(h.w, http.StatusAccepted, hookAnswer{
		Delivery: out.Delivery, Accepted: out.Changes, Ignored: out.Why,
		Spooled: out.Result == intake.Spooled, Duplicate: out.Result == intake.Duplicate,
	})
}

// done notes how a verified delivery ended.
func (h *hook) done(d forge.Delivery, outcome string, changes int, why string) {
	h.outcome = outcome
	if ctx := h.r.Context(); h.log.Enabled(ctx, slog.LevelInfo) {
		h.log.InfoContext(ctx, "webhook", "source", h.src.Name, "event", d.Event, "delivery", d.ID,
			"repo", intake.Repo(d).String(), "outcome", outcome, "changes", changes, "why", why)
	}
}

func (h *hook) refuseBody(err error) {
	switch {
	case errors.Is(err, errTooLong):
		h.refuse(http.StatusRequestEntityTooLarge, "too_long", fmt.Errorf("the body is longer than %d bytes", maxHook))
	case errors.Is(err, errNoRoom):
		h.w.Header().Set("Retry-After", "1")
		h.refuse(http.StatusTooManyRequests, "too_many", errors.New("too many deliveries at once; try again"))
	default:
		h.refuse(http.StatusBadRequest, "unreadable", errors.New("the body could not be read"))
	}
}

// refuse answers what is not worked on. Its sender may be anybody: nothing that was sent is logged.
func (h *hook) refuse(status int, outcome string, err error) {
	h.outcome = outcome
	h.log.InfoContext(h.r.Context(), "webhook refused", "source", h.src.Name, "outcome", outcome, "error", err)
	fail(h.w, status, err)
}

func (h *hook) unavailable(why string) {
	h.outcome = "unavailable"
	h.w.Header().Set("Retry-After", retryAfter)
	fail(h.w, http.StatusServiceUnavailable, errors.New(why))
}
