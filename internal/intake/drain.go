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
	drainBatch = 256 // deliveries that are dropped from the spool at once
	drainTime  = 5 * time.Second
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// Run brings what is in the spool to Redis, and adopts what dead processes have left in its folder, until
// ctx is done. Without a spool it returns at once.
func (in *Intake) Run(ctx context.Context) {
	if in.cfg.Spool == nil {
		return
	}
	adopt := time.NewTicker(in.cfg.Adopt)
	defer adopt.Stop()
	in.adopt(ctx)
	wait, away, refused := firstPause, false, ""
	for ctx.Err() == nil {
		n, err := in.drain(ctx)
		if err == nil && n > 0 {
			if away {
				in.cfg.Log.InfoContext(ctx, "redis takes webhooks again; those on disk go first")
			}
			wait, away = firstPause, false
			continue
		}
		var again <-chan time.Time
		appended := in.cfg.Spool.Appended()
		if err != nil && ctx.Err() == nil {
			_, refusal := errors.AsType[*refusedError](err)
			switch {
			case refusal && err.Error() != refused:
				refused = err.Error()
				in.cfg.Log.WarnContext(ctx, "a webhook is refused and waits on disk, behind the others; trying again", "error", err)
			case !refusal && !away:
				away = true
				in.cfg.Log.WarnContext(ctx, "webhooks wait on disk; trying again", "error", err)
			}
			if !refusal {
				appended = nil // it would meet the same
			}
			again, wait = time.After(wait), min(2*wait, lastPause)
		}
		select {
		case <-ctx.Done():
		case <-again:
		case <-appended:
		case <-adopt.C:
			in.adopt(ctx)
		}
	}
}

func (in *Intake) adopt(ctx context.Context) {
	n, err := in.cfg.Spool.Adopt()
	if err != nil {
		in.cfg.Log.ErrorContext(ctx, "what other processes have left in the spool cannot be looked for", "error", err)
	}
	if n > 0 {
		in.cfg.Log.InfoContext(ctx, "webhooks adopted that a process which has died left on disk", "deliveries", n)
	}
}

// drain brings the oldest deliveries to Redis, and returns how many have left the spool. The error is that
// of the first that has to wait. What cannot be dropped, for the disk is full, is not brought there once more.
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
			break // Redis is away: this one stays the first
		}
		in.done = append(in.done, item)
	}
	n = len(in.done)
	err = errors.Join(err, in.drop(), in.cfg.Spool.SetBack(back...))
	if err == nil && n == 0 {
		err = refused
	}
	return n, err
}

// drop takes out of the spool what Redis has.
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

// refusedError is an error that another delivery need not meet.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }

func (e *refusedError) Unwrap() error { return e.err }

// versionOf reads what all versions of an item have.
func versionOf(item []byte) (version int, at time.Time) {
	var k struct {
		Version int       `json:"version"`
		At      time.Time `json:"at"`
	}
	if json.Unmarshal(item, &k) != nil {
		return 0, time.Time{}
	}
	return k.Version, k.At
}

// redeliver brings one delivery to Redis. It returns nil for one that is to be dropped.
func (in *Intake) redeliver(ctx context.Context, item []byte) error {
	if version, at := versionOf(item); version > keptVersion && time.Since(at) <= in.cfg.Keep {
		return &refusedError{fmt.Errorf("a delivery of version %d is left to a newer version of this program", version)}
	}
	var k kept
	if err := json.Unmarshal(item, &k); err != nil || len(k.Delivery.Events) == 0 || k.Version > keptVersion {
		in.cfg.Log.ErrorContext(ctx, "webhook dropped: what was on disk cannot be read", "error", err, "bytes", len(item))
		in.cfg.Drained("dropped")
		return nil
	}
	src, ok, err := in.cfg.Sources.Get(k.Delivery.Source)
	if !ok || err != nil {
		src = forge.Source{Name: k.Delivery.Source} // it was verified when it came; all it lacks now is Auto
	}
	ctx, end := in.resume(ctx, k)
	defer func() { end(err) }()
	within, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	out, err := in.deliver(within, src, k.Delivery, k.At)
	switch {
	case err != nil && isAway(err):
		return err
	case err != nil && time.Since(k.At) > in.cfg.Keep:
		in.cfg.Log.ErrorContext(ctx, "webhook dropped: it was refused for too long", "source", src.Name, "delivery", k.Delivery.ID,
			"repo", Repo(k.Delivery).String(), "since", k.At, "error", err)
		in.cfg.Drained("dropped")
		return nil
	case err != nil:
		return &refusedError{fmt.Errorf("delivery %s of source %s: %w", k.Delivery.ID, src.Name, err)}
	}
	in.cfg.Log.InfoContext(ctx, "webhook from disk", "source", src.Name, "event", k.Delivery.Event, "delivery", k.Delivery.ID,
		"repo", Repo(k.Delivery).String(), "outcome", out.Result, "changes", out.Changes, "why", out.Why)
	in.cfg.Drained(out.Result)
	return nil
}
