package router

import (
	"context"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

// Changes fits an [events.Handler] into a [Route]: the lock is keyed by repository path, and the
// result and the repository's state are settled in one step with the change.
type Changes struct {
	Namespace events.Namespace
	Source    string // of results, as "/lockstep/worker/w1"
	Handler   events.Handler
	Floor     func(events.RepoPath) (uint64, error) // highest fence on the volume; nil: none
	Log       *slog.Logger
	// Observe is told of each change's outcome (synced, unchanged, removed, moved, polled, coalesced, failed;
	// left to a newer version) and the class of its error; nil: nobody.
	Observe func(outcome, class string)

	// Begin is told of each job as the work on it begins, under its lease and inside its slot; progress is then told
	// how far that is, and end that it is over. Nil: nobody is.
	Begin  func(job events.Job) (progress func(events.Progress), end func())
	Timed  func(Timeline) // told of each change that is settled, after Observe; nil: nobody
	Worked func(Work)     // told of each attempt at a change; nil: nobody
}

// Request asks for the lease on a change's repository, and for a move for that on the new path too.
func (c *Changes) Request(msg *message.Message) ([]locking.Request, error) {
	change, err := read(msg)
	if err != nil {
		c.left(msg, err)
		return nil, err
	}
	describe(msg.Context(), c.Source, change)
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

// left counts a change that is left to a newer version, and says so: once, however often it comes by.
func (c *Changes) left(msg *message.Message, err error) {
	delivery, ok := stream.DeliveryOf(msg)
	if events.ClassOf(err) != events.ClassNewer || ok && delivery.Delivered() > 1 {
		return
	}
	c.observe("left", string(events.ClassNewer))
	c.Log.WarnContext(msg.Context(), "change is left to a newer version; finish the upgrade, or it is a dead letter when it is too old", "job", msg.UUID, "error", err)
}

// Handle works on a change under its lease and commits what came of it.
func (c *Changes) Handle(msg *message.Message) (produced []*message.Message, err error) {
	change, err := read(msg)
	if err != nil {
		return nil, err
	}
	j := job(msg, change)
	watch, stop := c.start(&j)
	err = errPanicked // unless it returns
	defer func() { stop(err) }()
	outcome, err := c.followed(msg.Context(), j)
	if err != nil {
		return nil, err
	}
	watch.published = time.Now()
	result := outcome.Result
	result.Source, result.Took = c.Source, watch.published.Sub(watch.began)
	outcome.Result = result
	settlement, err := c.settlement(change, outcome)
	if err != nil {
		return nil, err
	}
	if produced, err = Commit(msg, settlement); err != nil {
		return nil, err
	}
	watch.settled = time.Now()
	c.settled(msg, change, result, watch)
	if outcome.Covers != nil && msg.Context().Err() == nil { // else nobody waits
		c.cover(msg, change.Repo, outcome.Covers)
	}
	return produced, nil
}

// settlement is what an outcome comes to: the result and the changes to publish, the state to remember.
func (c *Changes) settlement(change events.Change, outcome events.Outcome) (stream.Settlement, error) {
	out, err := stream.ResultMessage(outcome.Result)
	if err != nil {
		return stream.Settlement{}, err
	}
	s := stream.Settlement{Outputs: []stream.Output{{Stream: c.Namespace.Results(), Message: out}}}
	for _, next := range outcome.Changes {
		out, err := stream.ChangeMessage(next)
		if err != nil {
			return stream.Settlement{}, err
		}
		s.Outputs = append(s.Outputs, stream.Output{Stream: c.Namespace.Changes(), Message: out})
	}
	if len(outcome.State)+len(outcome.Drop) > 0 {
		s.State = append(s.State, stream.HashUpdate{Key: c.Namespace.Repo(change.Repo), Fields: outcome.State, Drop: outcome.Drop, Clear: outcome.Forget})
	}
	if len(outcome.StateTo) > 0 {
		s.State = append(s.State, stream.HashUpdate{Key: c.Namespace.Repo(change.To), Fields: outcome.StateTo})
	}
	return s, nil
}

// Failed is the result of a change that is to be given up.
func (c *Changes) Failed(msg *message.Message, cause error, attempts int) []stream.Output {
	change, err := read(msg)
	if err != nil {
		return nil // nothing to name: the dead letter says it all
	}
	j := job(msg, change)
	j.Attempt = attempts
	result := j.Result(events.ResultFailed)
	if skippedPoll(change, cause) {
		result.Type = events.ResultPolled // it comes again
	}
	result.Source = c.Source
	result.Class, result.Error = events.ClassOf(cause), oneLine(cause)
	result.Retryable = events.DispositionOf(cause) != events.Permanent || result.Class == events.ClassBusy
	out, err := stream.ResultMessage(result)
	if err != nil {
		return nil
	}
	outputs := []stream.Output{{Stream: c.Namespace.Results(), Message: out}}
	inject(msg.Context(), outputs)
	return outputs
}

// GivenUp counts a change that was given up.
func (c *Changes) GivenUp(msg *message.Message, cause error, _ int) {
	change, err := read(msg)
	if err != nil {
		return
	}
	outcome := "failed"
	if skippedPoll(change, cause) {
		outcome = "polled"
	}
	c.observe(outcome, string(events.ClassOf(cause)))
	tell(msg.Context(), attrOutcome.String(outcome))
	c.timed(timelineOf(msg, change).ended(outcome, time.Now()))
}

// skippedPoll reports whether a change is a poll that was skipped.
func skippedPoll(change events.Change, cause error) bool {
	return change.Type == events.ChangeDue && skipped(cause)
}

func (c *Changes) settled(msg *message.Message, change events.Change, result events.Result, watch *stopwatch) {
	outcome := "removed"
	switch {
	case result.Type == events.ResultMoved:
		outcome = "moved"
	case result.Type == events.ResultPolled:
		outcome = "polled"
	case result.Type == events.ResultSynced && result.Before == result.After:
		outcome = "unchanged"
	case result.Type == events.ResultSynced:
		outcome = "synced"
	}
	c.observe(outcome, "")
	tell(msg.Context(), attrOutcome.String(outcome))
	c.timed(timelineOf(msg, change).worked(locking.AllFromContext(msg.Context()), watch).ended(outcome, watch.settled))
	c.Log.InfoContext(msg.Context(), "change settled", "repo", change.Repo.String(), "job", change.ID, "outcome", outcome,
		"after", result.After, "fence", result.Fence, "took", result.Took)
}

func (c *Changes) observe(outcome, class string) {
	if c.Observe != nil {
		c.Observe(outcome, class)
	}
}

func (c *Changes) timed(t Timeline) {
	if c.Timed != nil {
		c.Timed(t)
	}
}

type changeKey struct{}

// read is parse for a message in its handler's hands, which is parsed once: its context keeps the change.
func read(msg *message.Message) (events.Change, error) {
	if change, ok := msg.Context().Value(changeKey{}).(events.Change); ok {
		return change, nil
	}
	change, err := parse(msg)
	if err == nil {
		msg.SetContext(context.WithValue(msg.Context(), changeKey{}, change))
	}
	return change, err
}

func parse(msg *message.Message) (events.Change, error) {
	change, err := events.ParseChange(msg.Payload)
	if err != nil {
		return events.Change{}, err
	}
	if change.ID == "" {
		change.ID = msg.UUID
	}
	return change, nil
}

func job(msg *message.Message, change events.Change) events.Job {
	j := events.Job{
		Change: change, Entry: msg.UUID, Attempt: 1,
		Confirm: func(context.Context) error { return nil },
		Latest:  func(context.Context) (string, error) { return "", nil },
		Newest:  func(context.Context) (string, error) { return "", nil },

		Progress: func(events.Progress) {},
	}
	if delivery, ok := stream.DeliveryOf(msg); ok {
		j.Entry, j.Attempt, j.Latest = delivery.Entry(), delivery.Attempt(), delivery.Latest
		j.Newest = func(ctx context.Context) (string, error) { return newest(ctx, delivery, change) }
	}
	if leases := locking.AllFromContext(msg.Context()); len(leases) > 0 {
		j.Fence, j.Confirm = leases[0].Fence(), leases.Confirm
		j.FenceTo = leases[len(leases)-1].Fence()
	}
	return j
}
