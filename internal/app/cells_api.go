package app

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/operate"
	"lockstep/internal/server"
	"lockstep/internal/state"
)

// placeAPI makes the endpoints about one repository work in its cell, and the lists of repositories and
// watches go through all cells, if the process belongs to a directory. tracker is of this process' cell.
func placeAPI(cfg Config, api *server.Config, client redis.UniversalClient, tracker *changes.Tracker) {
	if cfg.cells == nil {
		return
	}
	all := cells.All(client, cfg.cells)
	api.TopicOf = func(repo events.RepoPath) (string, error) {
		cell, err := all.Of(repo)
		return cell.Namespace.Changes(), err
	}
	api.Changes = changesOfAll{all, tracker, cells.Member{Name: cfg.Cell, Namespace: cfg.Namespace()}}
}

// reposOf returns the repositories of all cells, or of a deployment without a directory.
func reposOf(cfg Config, client redis.UniversalClient) server.Repos {
	if cfg.cells == nil {
		return state.NewStore(client, cfg.Namespace())
	}
	return reposOfAll{cells.All(client, cfg.cells)}
}

// reposOfAll are the repositories of all cells.
type reposOfAll struct{ set *cells.Set }

func (r reposOfAll) store(repo events.RepoPath) (*state.Store, error) {
	cell, err := r.set.Of(repo)
	return state.NewStore(r.set.Redis(), cell.Namespace), err
}

func (r reposOfAll) LoadAt(ctx context.Context, repo events.RepoPath) (state.Repo, time.Time, error) {
	store, err := r.store(repo)
	if err != nil {
		return state.Repo{}, time.Time{}, err
	}
	return store.LoadAt(ctx, repo)
}

func (r reposOfAll) NextPoll(ctx context.Context, repo events.RepoPath) (time.Time, error) {
	store, err := r.store(repo)
	if err != nil {
		return time.Time{}, err
	}
	return store.NextPoll(ctx, repo)
}

// cellShift is where the index of the cell begins in a cursor. Cursors of Redis have a bit for each doubling
// of the number of keys, and on a Redis Cluster 14 more.
const cellShift = 53

func (r reposOfAll) List(ctx context.Context, prefix string, cursor uint64, limit int) (page state.Page, err error) {
	index, own := int(cursor>>cellShift), cursor&(1<<cellShift-1)
	next, missing, err := operate.PageAt(ctx, r.set, index, func(ctx context.Context, cell cells.Member) (bool, error) {
		var err error
		page, err = state.NewStore(r.set.Redis(), cell.Namespace).List(ctx, prefix, own, limit)
		return page.Next != 0, err
	})
	switch {
	case err != nil:
		return state.Page{}, err
	case next < 0:
		page.Next = 0
	case page.Next>>cellShift != 0:
		return state.Page{}, fmt.Errorf("list repositories: the cursor %d of Redis is too large", page.Next)
	case next != index:
		page.Next = uint64(next) << cellShift
	default:
		page.Next |= uint64(index) << cellShift
	}
	page.Missing = missing
	return page, nil
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
