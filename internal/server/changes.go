package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"lockstep/internal/changes"
)

// Changes looks up the progress of changes. [changes.Tracker] implements it.
type Changes interface {
	Progress(ctx context.Context, entry string) (changes.Progress, error)
	Wait(ctx context.Context, entry string) (changes.Progress, error)
}

// accepted is the response to a published change.
type accepted struct {
	ID    string `json:"id"`
	Repo  string `json:"repo"`
	Entry string `json:"entry"`
}

type waiting struct {
	Entry string        `json:"entry"`
	State changes.State `json:"state"`
}

const (
	maxWait       = 60 * time.Second // for a result
	waitMargin    = 10 * time.Second // extra time to write the response
	lookupTimeout = 10 * time.Second
	maxWaiters    = 32 // concurrent requests for results
)

// showChange returns the result of a change and optionally waits for it. Waits end early when running is done.
func showChange(lookup Changes, running context.Context) http.Handler {
	places := make(chan struct{}, maxWaiters)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wait, err := waitOf(r)
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusTooManyRequests, fmt.Errorf("this process already serves %d requests for results; "+
				"retry, or send the request to another process", maxWaiters))
			return
		}
		// Test recorders do not support deadlines.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wait + lookupTimeout + waitMargin))
		progress, err := follow(r.Context(), running, lookup, r.PathValue("entry"), wait)
		switch {
		case errors.Is(err, changes.ErrBadEntry):
			fail(w, http.StatusBadRequest, errors.New("want the entry ID of a change, as in /api/v1/changes/1795223511284-0"))
		case progress.State == changes.Answered:
			reply(w, http.StatusOK, progress.Result)
		case progress.State == changes.Queued, progress.State == changes.Pending:
			reply(w, http.StatusAccepted, waiting{r.PathValue("entry"), progress.State})
		case progress.State == changes.Unknown:
			fail(w, http.StatusNotFound, errors.New("no such change, or its result has expired"))
		default:
			failWith(w, r, err)
		}
	})
}

// waitOf parses the parameter wait, which defaults to 0 and is capped at maxWait.
func waitOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 {
		return 0, errors.New("wait: want a duration, as in ?wait=30s")
	}
	return min(wait, maxWait), nil
}

// follow waits for the result of a change until running is done, or looks it up if wait is 0. It also looks
// up the change if wait ends before its state is known.
func follow(ctx, running context.Context, lookup Changes, entry string, wait time.Duration) (changes.Progress, error) {
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		defer context.AfterFunc(running, cancel)()
		if progress, err := lookup.Wait(waitCtx, entry); waitCtx.Err() == nil || running.Err() != nil ||
			progress.State != "" {
			return progress, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return lookup.Progress(ctx, entry)
}
