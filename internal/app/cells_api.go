package app

import (
	"cmp"
	"context"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
)

// topicOf returns the stream of the changes of a repository.
func topicOf(set *cells.Set) func(events.RepoPath) (string, error) {
	return func(repo events.RepoPath) (string, error) {
		cell, err := set.Of(repo)
		return cell.Namespace.Changes(), err
	}
}

// changesOfAll finds a change in the cell that has its entry. It looks in this process' cell first.
type changesOfAll struct {
	set     *cells.Set
	tracker *changes.Tracker // of own
	own     cells.Member
}

func (c changesOfAll) Progress(ctx context.Context, entry string) (changes.Progress, error) {
	_, progress, err := c.find(ctx, entry)
	return progress, err
}

func (c changesOfAll) Wait(ctx context.Context, entry string) (changes.Progress, error) {
	tracker, progress, err := c.find(ctx, entry)
	if err != nil || progress.State == changes.Answered || progress.State == changes.Unknown {
		return progress, err
	}
	return tracker.Wait(ctx, entry)
}

// find returns the progress of a change, and what waits for it.
func (c changesOfAll) find(
	ctx context.Context, entry string,
) (tracker *changes.Tracker, progress changes.Progress, err error) {
	tracker = c.tracker
	progress, err = tracker.Progress(ctx, entry)
	if err == nil && progress.State != changes.Unknown {
		return tracker, progress, nil
	}
	var others []cells.Member
	for _, m := range c.set.Members() {
		if m != c.own {
			others = append(others, m)
		}
	}
	for _, a := range cells.Gather(ctx, others, cells.AnswerTimeout, func(
		ctx context.Context, m cells.Member,
	) (changes.Progress, error) {
		return c.tracker.In(m.Namespace).Progress(ctx, entry)
	}) {
		if a.Err == nil && a.Value.State != changes.Unknown {
			return c.tracker.In(a.Namespace), a.Value, nil
		}
		err = cmp.Or(err, a.Err)
	}
	return tracker, progress, err
}
