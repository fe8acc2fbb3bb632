package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lockstep/internal/forge"
	"lockstep/internal/spool"
)

const (
	drainBatch   = 256 // deliveries removed from the spool at once
	drainTimeout = 5 * time.Second
	firstPause   = 50 * time.Millisecond
	lastPause    = time.Second
)

// Run sends spooled deliveries to Redis until ctx is done, including those left behind by dead processes.
func (in *Intake) Run(ctx context.Context) {
	if in.cfg.Spool == nil {
		return
	}
	adopt := time.NewTicker(in.cfg.Adopt)
	defer adopt.Stop()
	in.adopt(ctx)
	wait, unavailable, refused := firstPause, false, ""
	for ctx.Err() == nil {
		n, err := in.drain(ctx)
		if err == nil && n > 0 {
			if unavailable {
				in.cfg.Log.InfoContext(ctx, "redis is back, sending spooled webhooks first")
			}
			wait, unavailable = firstPause, false
			continue
		}
		var retry <-chan time.Time
		appended := in.cfg.Spool.Appended()
		if err != nil && ctx.Err() == nil {
			_, refusal := errors.AsType[*refusedError](err)
			switch {
			case refusal && err.Error() != refused:
				refused = err.Error()
				in.cfg.Log.WarnContext(ctx, "spooled webhook refused, will retry after the others", "error", err)
			case !refusal && !unavailable:
				unavailable = true
				in.cfg.Log.WarnContext(ctx, "spooled webhooks cannot be sent, will retry", "error", err)
			}
			if !refusal {
				appended = nil // a new delivery would also fail
			}
			retry, wait = time.After(wait), min(2*wait, lastPause)
		}
		select {
		case <-ctx.Done():
		case <-retry:
		case <-appended:
		case <-adopt.C:
			in.adopt(ctx)
		}
	}
}

func (in *Intake) adopt(ctx context.Context) {
	n, err := in.cfg.Spool.Adopt()
	if err != nil {
		in.cfg.Log.ErrorContext(ctx, "cannot check the spool for webhooks of dead processes", "error", err)
	}
	if n > 0 {
		in.cfg.Log.InfoContext(ctx, "adopted spooled webhooks of a dead process", "deliveries", n)
	}
}

// drain sends the oldest deliveries to Redis and returns the number removed from the spool. The error is that of the first
// delivery that must wait. Deliveries accepted by Redis whose removal failed are not sent again.
func (in *Intake) drain(ctx context.Context) (n int, err error) {
	if err := in.drop(); err != nil {
		return 0, err
	}
	items, err := in.cfg.Spool.Peek(drainBatch)
	if err != nil {
		return 0, err
	}
	var back []spool.Item
	var refused error
	for _, item := range items {
		err = in.redeliver(ctx, item.Data)
		if refusal, ok := errors.AsType[*refusedError](err); ok {
			back, refused, err = append(back, item), refusal, nil
			continue
		}
		if err != nil {
			break // Redis is unreachable: this one stays first
		}
		in.done = append(in.done, item)
	}
	n = len(in.done)
	err = errors.Join(err, in.drop(), in.cfg.Spool.Requeue(back...))
	if err == nil && n == 0 {
		err = refused
	}
	return n, err
}

// drop removes deliveries that Redis has accepted from the spool.
func (in *Intake) drop() error {
	if len(in.done) == 0 {
		return nil
	}
	err := in.cfg.Spool.Drop(in.done...)
	if err == nil {
		in.done = nil
	}
	return err
}

type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }

func (e *refusedError) Unwrap() error { return e.err }

// versionOf decodes the fields that all versions of an item have.
func versionOf(item []byte) (version int, at time.Time) {
	var s struct {
		Version int       `json:"version"`
		At      time.Time `json:"at"`
	}
	if json.Unmarshal(item, &s) != nil {
		return 0, time.Time{}
	}
	return s.Version, s.At
}

// redeliver sends one delivery to Redis. It returns nil if the delivery is to be removed from the spool.
func (in *Intake) redeliver(ctx context.Context, item []byte) error {
	if version, at := versionOf(item); version > spooledVersion && time.Since(at) <= in.cfg.Keep {
		return &refusedError{fmt.Errorf("delivery of format version %d, waiting for a newer version of lockstep", version)}
	}
	var s spooled
	if err := json.Unmarshal(item, &s); err != nil || len(s.Delivery.Events) == 0 || s.Version > spooledVersion {
		in.cfg.Log.ErrorContext(ctx, "spooled webhook dropped, cannot be decoded", "error", err, "bytes", len(item))
		in.cfg.Drained("dropped")
		return nil
	}
	src, ok, err := in.cfg.Sources.Get(s.Delivery.Source)
	if !ok || err != nil {
		src = forge.Source{Name: s.Delivery.Source} // already verified; only Auto is missing
	}
	ctx, end := in.resume(ctx, s)
	defer func() { end(err) }()
	redisCtx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	out, err := in.deliver(redisCtx, src, s.Delivery, s.At)
	switch {
	case err != nil && isUnavailable(err):
		return err
	case err != nil && time.Since(s.At) > in.cfg.Keep:
		in.cfg.Log.ErrorContext(ctx, "spooled webhook dropped, Redis refused it until it expired", "source", src.Name, "delivery", s.Delivery.ID,
			"repo", Repo(s.Delivery).String(), "since", s.At, "error", err)
		in.cfg.Drained("dropped")
		return nil
	case err != nil:
		return &refusedError{fmt.Errorf("delivery %s of source %s: %w", s.Delivery.ID, src.Name, err)}
	}
	in.cfg.Log.InfoContext(ctx, "spooled webhook sent", "source", src.Name, "event", s.Delivery.Event, "delivery", s.Delivery.ID,
		"repo", Repo(s.Delivery).String(), "outcome", out.Result, "changes", out.Changes, "why", out.Why)
	in.cfg.Drained(out.Result)
	return nil
}
