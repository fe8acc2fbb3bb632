package app

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/redisx"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// placeAPI makes the endpoints about one repository work in its cell, and the lists of repositories and
// watches go through all cells, if the process belongs to a directory. waiters is for blocking reads.
func placeAPI(cfg Config, api *server.Config, client, waiters redis.UniversalClient) {
	if cfg.cells == nil {
		return
	}
	all := allCells{set: cells.All(client, cfg.cells), redis: client}
	api.TopicOf = func(repo events.RepoPath) (string, error) {
		cell, err := all.set.Of(repo)
		return cell.Namespace.Changes(), err
	}
	api.Changes = changesOfAll{all, waiters, cells.Member{Name: cfg.Cell, Namespace: cfg.Namespace()}}
	api.Watches = watchesOfAll{all}
	api.AllLocks, api.DeadCells = locksByCell{all, &sync.Map{}}.list, deadOfAll{all}
	api.Locks = locksOfAll{api.Locks, all}
}

// reposOf returns the repositories of all cells, or of a deployment without a directory.
func reposOf(cfg Config, client redis.UniversalClient) server.Repos {
	if cfg.cells == nil {
		return state.NewStore(client, cfg.Namespace())
	}
	return reposOfAll{allCells{set: cells.All(client, cfg.cells), redis: client}}
}

// allCells finds the cell of a repository.
type allCells struct {
	set   *cells.Set
	redis redis.UniversalClient
}

// page calls list for the cell of a cursor, which has the index of the cell in front of the cell's own one,
// and returns the cursor of the next page. A cell that does not answer is skipped, and its name returned. The
// order of the cells is that of their names: a list that is read while a cell is added or removed may lack
// some of it or repeat it.
func (a allCells) page(
	ctx context.Context, index int, list func(context.Context, cells.Member) (more bool, err error),
) (next int, missing string, err error) {
	members := a.set.Members()
	if index >= len(members) {
		return -1, "", nil
	}
	limited, cancel := context.WithTimeout(ctx, cells.AnswerTimeout)
	defer cancel()
	more, err := list(limited, members[index])
	switch {
	case err != nil && ctx.Err() != nil:
		return 0, "", ctx.Err()
	case err != nil && !redisx.Unavailable(err) && limited.Err() == nil:
		return 0, "", err
	case err != nil:
		missing = members[index].Name
	case more:
		return index, "", nil
	}
	if index+1 == len(members) {
		return -1, missing, nil
	}
	return index + 1, missing, nil
}

// reposOfAll are the repositories of all cells.
type reposOfAll struct{ allCells }

func (r reposOfAll) store(repo events.RepoPath) (*state.Store, error) {
	cell, err := r.set.Of(repo)
	return state.NewStore(r.redis, cell.Namespace), err
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
	next, missing, err := r.page(ctx, index, func(ctx context.Context, cell cells.Member) (bool, error) {
		var err error
		page, err = state.NewStore(r.redis, cell.Namespace).List(ctx, prefix, own, limit)
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

// watchesOfAll are the watches of all cells.
type watchesOfAll struct{ allCells }

func (w watchesOfAll) registry(repo events.RepoPath) (*watch.Registry, error) {
	cell, err := w.set.Of(repo)
	return watch.NewRegistry(w.redis, cell.Namespace), err
}

func (w watchesOfAll) Of(ctx context.Context, repo events.RepoPath) (watch.Set, error) {
	registry, err := w.registry(repo)
	if err != nil {
		return watch.Set{}, err
	}
	return registry.Of(ctx, repo)
}

// Put is not atomic for watches of several repositories.
func (w watchesOfAll) Put(ctx context.Context, watches ...watch.Watch) (changed int, err error) {
	for _, one := range watches {
		registry, err := w.registry(one.Repo)
		if err != nil {
			return changed, err
		}
		n, err := registry.Put(ctx, one)
		changed += n
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// Remove is not atomic for watches of several repositories.
func (w watchesOfAll) Remove(ctx context.Context, keys ...watch.Key) (removed int, err error) {
	for _, key := range keys {
		registry, err := w.registry(key.Repo)
		if err != nil {
			return removed, err
		}
		n, err := registry.Remove(ctx, key)
		removed += n
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// List lists cell by cell, each in order. [watch.Page.Next] has the index of the cell in front.
func (w watchesOfAll) List(ctx context.Context, q watch.Query) (page watch.Page, err error) {
	index, own, ok := cursorOf(q.After)
	if !ok {
		return watch.Page{}, watch.ErrBadAfter
	}
	q.After = own
	next, missing, err := w.page(ctx, index, func(ctx context.Context, cell cells.Member) (bool, error) {
		var err error
		page, err = watch.NewRegistry(w.redis, cell.Namespace).List(ctx, q)
		return page.Next != "", err
	})
	if err != nil {
		return watch.Page{}, err
	}
	page.Next, page.Missing = cursorTo(index, next, page.Next), missing
	return page, nil
}

// cursorOf splits a cursor that has the index of the cell in front. "" is the beginning of the first cell.
func cursorOf(text string) (index int, own string, ok bool) {
	if text == "" {
		return 0, "", true
	}
	head, own, ok := strings.Cut(text, ":")
	index, err := strconv.Atoi(head)
	return index, own, ok && err == nil && index >= 0
}

// cursorTo returns the cursor after a page of the cell with an index. next is that of [allCells.page], own
// the cell's own cursor.
func cursorTo(index, next int, own string) string {
	switch next {
	case -1:
		return ""
	case index:
		return strconv.Itoa(index) + ":" + own
	}
	return strconv.Itoa(next) + ":"
}

// locksOfAll finds the lease of a repository in its cell. It lists those of this process' cell; [locksByCell]
// lists all.
type locksOfAll struct {
	server.Locks
	allCells
}

func (l locksOfAll) inspector(key string) (*locking.Inspector, error) {
	repo, err := events.ParseRepoPath(key)
	if err != nil {
		return nil, err
	}
	cell, err := l.set.Of(repo)
	if err != nil {
		return nil, err
	}
	return locking.NewInspector(locking.InspectorConfig{Redis: l.redis, Prefix: cell.Namespace.Locks()})
}

func (l locksOfAll) Status(ctx context.Context, key string) (locking.Status, error) {
	inspector, err := l.inspector(key)
	if err != nil {
		return locking.Status{}, err
	}
	return inspector.Status(ctx, key)
}

func (l locksOfAll) ForceRelease(ctx context.Context, key string, fence uint64) (locking.Holder, error) {
	inspector, err := l.inspector(key)
	if err != nil {
		return locking.Holder{}, err
	}
	return inspector.ForceRelease(ctx, key, fence)
}

// changesOfAll finds a change in the cell that has its entry. It looks in this process' cell first.
type changesOfAll struct {
	allCells
	waiters redis.UniversalClient
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
	tracker = changes.NewTracker(c.waiters, c.own.Namespace)
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
		return changes.NewTracker(c.waiters, m.Namespace).Progress(ctx, entry)
	}) {
		if a.Err == nil && a.Value.State != changes.Unknown {
			return changes.NewTracker(c.waiters, a.Namespace), a.Value, nil
		}
		err = cmp.Or(err, a.Err)
	}
	return tracker, progress, err
}
