package intake

import (
	"context"
	"encoding/json"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"lockstep/internal/forge"
	"lockstep/internal/watch"
)

const (
	drainTimeout = 5 * time.Second
	retryEvery   = 250 * time.Millisecond // while Redis is unreachable
)

// Run sends spooled deliveries to Redis until ctx is done, including those left behind by dead processes.
func (in *Intake) Run(ctx context.Context) {
	if in.cfg.Spool == nil {
		return
	}
	unavailable := false
	for ctx.Err() == nil {
		more, err := in.cfg.Spool.Drain(func(text []byte, again bool) (keep bool, err error) {
			return in.resend(ctx, text, again)
		})
		pause, appended := in.cfg.Adopt, in.cfg.Spool.Appended()
		switch {
		case err != nil:
			if !unavailable && ctx.Err() == nil {
				in.cfg.Log.WarnContext(ctx, "spooled webhooks cannot be sent, will retry", "error", err)
			}
			unavailable, pause, appended = true, retryEvery, nil // a new delivery would also fail
		case more:
			if unavailable {
				in.cfg.Log.InfoContext(ctx, "redis is back, sending spooled webhooks first")
			}
			unavailable = false
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-appended:
		}
	}
}

// resend sends one delivery to Redis. It keeps it if Redis refuses it for now, and returns an error if no
// delivery can be sent. again means that it was kept before.
func (in *Intake) resend(ctx context.Context, text []byte, again bool) (keep bool, err error) {
	var s spooled
	if err := json.Unmarshal(text, &s); err != nil || len(s.Delivery.Events) == 0 {
		in.cfg.Log.ErrorContext(ctx, "spooled webhook dropped, cannot be decoded", "error", err, "bytes", len(text))
		in.cfg.Drained("dropped")
		return false, nil
	}
	src, ok, err := in.cfg.Sources.Get(s.Delivery.Source)
	if !ok || err != nil {
		src = forge.Source{Name: s.Delivery.Source} // already verified; only Auto is missing
	}
	repo := Repo(s.Delivery)
	log := in.cfg.Log.With("source", src.Name, "event", s.Delivery.Event, "delivery", s.Delivery.ID, "repo", repo)
	ctx, span := in.cfg.Tracer.Start(propagation.TraceContext{}.Extract(ctx, s.Trace), "webhook from disk",
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(s.At),
		trace.WithAttributes(attribute.String("lockstep.source", src.Name),
			attribute.String("lockstep.delivery", s.Delivery.ID), attribute.String("lockstep.repo", repo)))
	limited, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	out, err := in.deliver(limited, src, s.Delivery, s.At)
	if err != nil && isUnavailable(err) {
		return false, err // without its span: there may be many attempts
	}
	defer span.End()
	if err == nil {
		log.InfoContext(ctx, "spooled webhook sent", "outcome", out.Result, "changes", out.Changes, "why", out.Why)
		in.cfg.Drained(out.Result)
		return false, nil
	}
	span.SetStatus(codes.Error, "refused")
	if time.Since(s.At) > watch.Keep {
		log.ErrorContext(ctx, "spooled webhook dropped, Redis refused it until it expired", "since", s.At, "error", err)
		in.cfg.Drained("dropped")
		return false, nil
	}
	if !again {
		log.WarnContext(ctx, "spooled webhook refused, will retry until it expires", "error", err)
	}
	return true, nil
}
