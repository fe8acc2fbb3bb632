package handlers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/hosts"
	"lockstep/internal/state"
	"lockstep/internal/watch"
	"lockstep/locking"
	"lockstep/router"
)

// Changes adapts a [Handler] to a [router.Route]. The lock is keyed by repository path. The result and the repository's
// state are settled in one step with the change.
type Changes struct {
	Namespace events.Namespace
	Source    string // of results, such as "/lockstep/worker/w1"
	Handler   Handler
	Floor     func(events.RepoPath) (uint64, error) // returns the highest fence on the volume; optional

	Limiter *hosts.Limiter  // limits the requests to hosts; optional
	Watches *watch.Registry // required with a Limiter

	Asked func(url string) string // returns the URL at which a remote is asked; required with a Limiter

	// Elsewhere adds a message to the stream of the deployment to which its repository belongs, and returns a
	// name for that, or "" if it belongs to this one; see [Changes.Forward]. entry is the message's stream
	// entry. Optional.
	Elsewhere func(msg *message.Message, entry string, repo events.RepoPath) (to string, err error)

	// Observe is called with each [Event], from many goroutines. It must not block. Optional.
	Observe func(Event)

	Log *slog.Logger // required
}

// Request returns the locks for a change: its repository and, for a move, the new path too.
func (c *Changes) Request(msg *message.Message) ([]locking.Request, error) {
	change, err := parseOnce(msg)
	if err != nil {
		return nil, err
	}
	c.describe(msg.Context(), change)
	paths := []events.RepoPath{change.Repo}
	if !change.To.IsZero() && !change.To.Equal(change.Repo) {
		paths = append(paths, change.To)
	}
	reqs := make([]locking.Request, len(paths))
	for i, path := range paths {
		reqs[i] = locking.Request{Key: path.Key(), Job: change.ID, Operation: change.Type.Operation()}
		if change.OnBusy == events.BusySkip {
			reqs[i].IfHeld = locking.Skip
		}
		if c.Floor != nil {
			if reqs[i].Floor, err = c.Floor(path); err != nil {
				return nil, err
			}
		}
	}
	return reqs, nil
}

var errPanicked = errors.New("the handler panicked")

// Handle calls the handler under the change's lease and commits the outcome.
func (c *Changes) Handle(msg *message.Message) (produced []*message.Message, err error) {
	change, err := parseOnce(msg)
	if err != nil {
		return nil, err
	}
	ctx, leases := msg.Context(), router.Leases(msg)
	delivery, _ := stream.DeliveryOf(msg)
	j := job(change, entryOf(msg), delivery, leases)
	j.Requests, _ = ctx.Value(requestsKey{}).(*hosts.Job)
	attempt := c.begin(ctx, &j)
	err = errPanicked // unless the handler returns
	defer func() { attempt.end(err) }()
	outcome, err := c.Handler(ctx, j)
	took := attempt.hasReturned(err)
	if err != nil {
		return nil, err
	}
	outcome.Result.Source, outcome.Result.Took = c.Source, took
	for i := range outcome.More {
		outcome.More[i].Source, outcome.More[i].Took = c.Source, took
	}
	settlement, err := c.settlement(change, outcome)
	if err != nil {
		return nil, err
	}
	if produced, err = router.Commit(msg, settlement); err != nil {
		return nil, err
	}
	result, name := outcome.Result, outcomeOf(outcome.Result)
	t := delivered(change, delivery)
	for _, lease := range leases {
		t.Leased = latest(t.Leased, lease.Began())
	}
	c.ended(ctx, Event{Timeline: attempt.timeline(t, name), Result: result})
	log := c.Log.With("repo", change.Repo.String(), "job", change.ID, "fence", result.Fence, "took", result.Took)
	if result.Type == events.ResultFailed {
		log.ErrorContext(ctx, "change failed", "class", string(result.Class), "error", result.Error)
	} else {
		log.InfoContext(ctx, "change settled", "outcome", name, "after", result.After)
	}
	if outcome.Covers != nil && delivery != nil && len(leases) > 0 && ctx.Err() == nil { // with an error the lease is gone
		c.settleCovered(ctx, answer{change, delivery, leases, outcome.Covers})
	}
	return produced, nil
}

// settlement settles an outcome: the results and the changes to publish, the state to remember.
func (c *Changes) settlement(change events.Change, outcome Outcome) (stream.Settlement, error) {
	s := stream.Settlement{Outputs: make([]stream.Output, 0, 1+len(outcome.More)+len(outcome.Changes))}
	for i := range 1 + len(outcome.More) {
		result := outcome.Result
		if i > 0 {
			result = outcome.More[i-1]
		}
		out, err := changes.ResultMessage(result)
		if err != nil {
			return stream.Settlement{}, err
		}
		s.Outputs = append(s.Outputs, stream.Output{Stream: c.Namespace.Results(), Message: out})
	}
	for _, next := range outcome.Changes {
		out, err := changes.Message(next)
		if err != nil {
			return stream.Settlement{}, err
		}
		s.Outputs = append(s.Outputs, stream.Output{Stream: c.Namespace.Changes(), Message: out})
	}
	s.State = watch.Settled(c.Namespace, change, outcome.Result.Type == events.ResultFailed)
	if len(outcome.State)+len(outcome.Drop) > 0 {
		s.State = append(s.State, stream.HashUpdate{
			Key: c.Namespace.Repo(change.Repo), Fields: outcome.State, Drop: outcome.Drop, Clear: outcome.Forget,
		})
	}
	if outcome.Forget || slices.Contains(outcome.Drop, state.TroubleField) {
		s.State = append(s.State, stream.HashUpdate{Key: c.Namespace.Failing(), Drop: []string{change.Repo.Key()}})
	}
	if len(outcome.StateTo) > 0 {
		s.State = append(s.State, stream.HashUpdate{Key: c.Namespace.Repo(change.To), Fields: outcome.StateTo})
	}
	if len(outcome.Views) > 0 || outcome.Forget {
		s.State = append(s.State, viewsUpdate(c.Namespace.Views(change.Repo), outcome.Views, outcome.Forget))
	}
	if len(outcome.ViewsTo) > 0 {
		s.State = append(s.State, viewsUpdate(c.Namespace.Views(change.To), outcome.ViewsTo, false))
	}
	return s, nil
}

// viewsUpdate returns the update of the state of a repository's views.
func viewsUpdate(key string, fields map[string]string, clear bool) stream.HashUpdate {
	update := stream.HashUpdate{Key: key, Fields: map[string]string{}, Clear: clear}
	for field, value := range fields {
		if value == "" {
			update.Drop = append(update.Drop, field)
		} else {
			update.Fields[field] = value
		}
	}
	return update
}

// Dispose returns the disposer of changes, which reports a failed change with its result.
func (c *Changes) Dispose(retry router.Retry) router.Disposer {
	return router.Disposer{Retry: retry, Failed: c.failed, OnGiveUp: c.onGiveUp, Attrs: c.attrs, Log: c.Log}
}

// attrs returns the repository of a message, if it is a change.
func (c *Changes) attrs(msg *message.Message) []any {
	change, err := parseOnce(msg)
	if err != nil {
		return nil
	}
	return []any{"repo", change.Repo.String()}
}

// failed returns the settlement of a change that is given up because of cause.
func (c *Changes) failed(msg *message.Message, cause error, attempts int) stream.Settlement {
	change, err := parseOnce(msg)
	if err != nil {
		return stream.Settlement{} // no repository to report on; the dead letter records the cause
	}
	result := change.Result(events.ResultFailed, entryOf(msg))
	if skippedPoll(change, cause) {
		result.Type = events.ResultPolled // the next poll catches up
	}
	result.Source, result.Attempts = c.Source, attempts
	result.Class, result.Error = events.ClassOf(cause), router.OneLine(cause)
	result.Retryable = events.DispositionOf(cause) != events.Permanent || errors.Is(cause, locking.ErrHeld)
	s, err := c.settlement(change, Outcome{Result: result})
	if err != nil {
		return stream.Settlement{}
	}
	return s
}

// onGiveUp observes a change that was given up.
func (c *Changes) onGiveUp(msg *message.Message, cause error, _ int) {
	change, err := parseOnce(msg)
	if err != nil {
		return
	}
	outcome := outcomeFailed
	if skippedPoll(change, cause) {
		outcome = "polled"
	}
	delivery, _ := stream.DeliveryOf(msg)
	t := delivered(change, delivery).ended(outcome, time.Now())
	c.ended(msg.Context(), Event{Timeline: t, Result: events.Result{Class: events.ClassOf(cause)}})
}

// skippedPoll reports whether a poll need not be handled, because the next one does the same.
func skippedPoll(change events.Change, cause error) bool {
	return change.Type == events.ChangeDue &&
		events.DispositionOf(cause) == events.Permanent && events.ScopeOf(cause) == events.ScopeNone
}

func outcomeOf(result events.Result) string {
	switch {
	case result.Type == events.ResultFailed:
		return outcomeFailed
	case result.Type == events.ResultMoved:
		return "moved"
	case result.Type == events.ResultPolled:
		return "polled"
	case result.Type == events.ResultSynced && result.Unchanged():
		return "unchanged"
	case result.Type == events.ResultSynced:
		return "synced"
	}
	return "removed"
}

type changeKey struct{}

// parseOnce parses a message on the first call and remembers the change in the message's context.
func parseOnce(msg *message.Message) (events.Change, error) {
	if change, ok := msg.Context().Value(changeKey{}).(*events.Change); ok {
		return *change, nil
	}
	change, err := parse(msg)
	if err != nil {
		return events.Change{}, err
	}
	msg.SetContext(context.WithValue(msg.Context(), changeKey{}, &change))
	return change, nil
}

func parse(msg *message.Message) (events.Change, error) {
	change, err := events.ParseChange(msg.Payload)
	change.ID = cmp.Or(change.ID, msg.UUID)
	return change, err
}

// entryOf returns the ID of a message's stream entry, or its own if it did not come from a stream.
func entryOf(msg *message.Message) string {
	if delivery, ok := stream.DeliveryOf(msg); ok {
		return delivery.Entry()
	}
	return msg.UUID
}

// job returns the handler's job for the change in an entry: that of the delivery, or a sibling of it.
// delivery may be nil and leases empty.
func job(change events.Change, entry string, delivery *stream.Delivery, leases locking.Leases) Job {
	j := Job{
		Change: change, Entry: entry, Attempt: 1,
		Confirm:  func(context.Context) error { return nil },
		Waiting:  func(context.Context) ([]Job, error) { return nil, nil },
		Defer:    func(context.Context, []string, time.Duration) error { return nil },
		Progress: func(events.Progress) {},
	}
	if delivery != nil {
		j.Latest = delivery.Latest()
		j.Waiting = func(ctx context.Context) ([]Job, error) { return waitingJobs(ctx, delivery, change.Repo) }
		j.Defer = delivery.Defer
		j.Now = delivery.Now
		if entry == delivery.Entry() {
			j.Attempt = delivery.Attempt()
		}
	}
	if len(leases) > 0 {
		j.Fence, j.Confirm = leases[0].Fence(), leases.Confirm
		j.FenceTo = leases[len(leases)-1].Fence()
	}
	return j
}
