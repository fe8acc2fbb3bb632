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
	// Observe is told of each change's outcome (synced, unchanged, removed, failed) and the class of
	// its error; nil: nobody.
	Observe func(outcome, class string)
}

// Request asks for the lease on a change's repository.
func (c *Changes) Request(msg *message.Message) (locking.Request, error) {
	change, err := read(msg)
	if err != nil {
		return locking.Request{}, err
	}
	req := locking.Request{Key: change.Repo.Key(), Job: change.ID, Operation: operation(change.Type)}
	if change.OnBusy == events.BusySkip {
		req.IfHeld = locking.Skip
	}
	if c.Floor != nil {
		if req.Floor, err = c.Floor(change.Repo); err != nil {
			return locking.Request{}, err
		}
	}
	return req, nil
}

// Handle works on a change under its lease and commits what came of it.
func (c *Changes) Handle(msg *message.Message) ([]*message.Message, error) {
	began := time.Now()
	change, err := read(msg)
	if err != nil {
		return nil, err
	}
	outcome, err := c.Handler(msg.Context(), job(msg, change))
	if err != nil {
		return nil, err
	}
	result := outcome.Result
	result.Source, result.Took = c.Source, time.Since(began)
	settlement, err := c.settlement(change, outcome.State, outcome.Forget, result)
	if err != nil {
		return nil, err
	}
	produced, err := Commit(msg, settlement)
	if err != nil {
		return nil, err
	}
	c.settled(msg.Context(), change, result)
	if outcome.Covers != nil && msg.Context().Err() == nil { // else nobody waits
		c.cover(msg, change.Repo, outcome.Covers)
	}
	return produced, nil
}

// settlement is what a result and the state to remember come to.
func (c *Changes) settlement(change events.Change, fields map[string]string, clear bool, result events.Result) (stream.Settlement, error) {
	out, err := stream.ResultMessage(result)
	if err != nil {
		return stream.Settlement{}, err
	}
	s := stream.Settlement{Outputs: []stream.Output{{Stream: c.Namespace.Results(), Message: out}}}
	if len(fields) > 0 {
		s.State = []stream.HashUpdate{{Key: c.Namespace.Repo(change.Repo), Fields: fields, Clear: clear}}
	}
	return s, nil
}

// Failed is the result of a change that is given up.
func (c *Changes) Failed(msg *message.Message, cause error, attempts int) []stream.Output {
	change, err := read(msg)
	if err != nil {
		return nil // nothing to name: the dead letter says it all
	}
	j := job(msg, change)
	j.Attempt = attempts
	result := j.Result(events.ResultFailed)
	result.Source = c.Source
	result.Class, result.Error = events.ClassOf(cause), oneLine(cause)
	result.Retryable = events.DispositionOf(cause) != events.Permanent || result.Class == events.ClassBusy
	out, err := stream.ResultMessage(result)
	if err != nil {
		return nil
	}
	c.observe("failed", string(result.Class))
	return []stream.Output{{Stream: c.Namespace.Results(), Message: out}}
}

func (c *Changes) settled(ctx context.Context, change events.Change, result events.Result) {
	outcome := "removed"
	if result.Type == events.ResultSynced {
		outcome = "synced"
		if result.Before == result.After {
			outcome = "unchanged"
		}
	}
	c.observe(outcome, "")
	c.Log.InfoContext(ctx, "change settled", "repo", change.Repo.String(), "job", change.ID, "outcome", outcome,
		"after", result.After, "fence", result.Fence, "took", result.Took)
}

func (c *Changes) observe(outcome, class string) {
	if c.Observe != nil {
		c.Observe(outcome, class)
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
	}
	if delivery, ok := stream.DeliveryOf(msg); ok {
		j.Entry, j.Attempt, j.Latest = delivery.Entry(), delivery.Attempt(), delivery.Latest
		j.Newest = func(ctx context.Context) (string, error) { return newest(ctx, delivery, change) }
	}
	if lease, ok := locking.FromContext(msg.Context()); ok {
		j.Fence, j.Confirm = lease.Fence(), lease.Confirm
	}
	return j
}

func operation(t events.ChangeType) string {
	if t == events.ChangeRemoved {
		return "remove"
	}
	return "sync"
}
