package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
)

// Changes tells what became of changes; a [stream.Tracker] does.
type Changes interface {
	Progress(ctx context.Context, entry string) (stream.Progress, error)
	Wait(ctx context.Context, entry string) (stream.Progress, error)
}

// adder is a publisher that says where it has put a message; a [stream.Publisher] is.
type adder interface {
	Add(ctx context.Context, topic string, msg *message.Message) (entry string, err error)
}

// accepted is the answer to a change that is taken. Entry names it from then on, if it is known.
type accepted struct {
	ID    string `json:"id"`
	Repo  string `json:"repo"`
	Entry string `json:"entry,omitempty"`
}

// waiting is the answer to one who asks for the result of a change that has none yet.
type waiting struct {
	Entry string             `json:"entry"`
	State stream.ChangeState `json:"state"`
}

const (
	maxWait    = 60 * time.Second // for which a request may wait for a result
	waitMargin = 10 * time.Second // to answer beyond that
	lookLimit  = 10 * time.Second // to look a change up

	// maxWaiters is how many requests for results a process serves at once. Each keeps a connection to
	// Redis busy; it is as many as one client has.
	maxWaiters = 32
)

// showChange answers with the result of a change, and waits for it if asked to. Wherever the process
// is told to stop, nobody is kept waiting.
func showChange(changes Changes, running context.Context) http.Handler {
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
			fail(w, http.StatusTooManyRequests, fmt.Errorf("%d others ask for results; try again, or another process", maxWaiters))
			return
		}
		// A recorder in a test has no deadline to set.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wait + lookLimit + waitMargin))
		progress, err := follow(r.Context(), running, changes, r.PathValue("entry"), wait)
		switch {
		case errors.Is(err, stream.ErrBadEntry):
			fail(w, http.StatusBadRequest, errors.New("want the entry of a change, as in /api/v1/changes/1795223511284-0"))
		case progress.State == stream.ChangeAnswered:
			reply(w, http.StatusOK, progress.Result)
		case progress.State == stream.ChangeQueued, progress.State == stream.ChangePending:
			reply(w, http.StatusAccepted, waiting{r.PathValue("entry"), progress.State})
		case progress.State == stream.ChangeUnknown:
			fail(w, http.StatusNotFound, errors.New("there is no such change, or its result is not kept any more"))
		default:
			unavailable(w)
		}
	})
}

// waitOf reads for how long a request wants to wait: not at all unless it says so, and at most a minute.
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

// follow looks the change up, or waits for its result while the process is running. A wait too short
// to have seen anything ends with a look.
func follow(ctx, running context.Context, changes Changes, entry string, wait time.Duration) (stream.Progress, error) {
	if wait > 0 {
		slice, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		defer context.AfterFunc(running, cancel)()
		if progress, err := changes.Wait(slice, entry); slice.Err() == nil || running.Err() != nil || progress.State != "" {
			return progress, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	return changes.Progress(ctx, entry)
}
