package operate

import (
	"cmp"
	"context"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/watch"
)

// Watches are the watches of a deployment.
type Watches struct{ Cells *cells.Set }

func (w *Watches) registry(cell cells.Member) *watch.Registry {
	return watch.NewRegistry(w.Cells.Redis(), cell.Namespace)
}

// In returns the registry of the cell of a repository.
func (w *Watches) In(repo events.RepoPath) (*watch.Registry, error) {
	cell, err := w.Cells.Of(repo)
	return w.registry(cell), err
}

// Count returns the number of watched repositories of the cells that answer.
func (w *Watches) Count(ctx context.Context) (n int64, err error) {
	_, err = Each(ctx, w.Cells, func(cell cells.Member) error {
		watched, err := w.registry(cell).Count(ctx)
		n += watched
		return err
	})
	return n, err
}

// Overdue returns the repositories of the cells that answer whose polls are overdue: see [watch.Registry.Overdue].
func (w *Watches) Overdue(ctx context.Context, usually bool) (all Unasked, err error) {
	_, err = Each(ctx, w.Cells, func(cell cells.Member) error {
		n, since, err := w.registry(cell).Overdue(ctx, usually)
		all.Repos += n
		if n > 0 {
			all.Since = earlier(all.Since, since)
		}
		return err
	})
	return all, err
}

// Page lists cell by cell, each in order.
func (w *Watches) Page(ctx context.Context, q watch.Query) (page watch.Page, err error) {
	page.Watches = []watch.Watch{}
	page.Next, page.Missing, err = Page(ctx, w.Cells, q.After, func(
		ctx context.Context, cell cells.Member, after string,
	) (next string, err error) {
		q.After = after
		found, err := w.registry(cell).List(ctx, q)
		if err == nil {
			page = found
		}
		return found.Next, err
	})
	return page, err
}

// List returns up to q.Limit watches of all cells that answer, all if it is 0, by repository, and the other cells. It
// reports whether there are more.
func (w *Watches) List(ctx context.Context, q watch.Query) ([]watch.Watch, bool, []cells.Missing, error) {
	byRepo := func(a, b watch.Watch) int { return cmp.Compare(a.Repo.Key(), b.Repo.Key()) }
	in := q
	in.Limit = 1000
	return Gather(ctx, w.Cells, q.Limit, byRepo, func(cell cells.Member) (list []watch.Watch, more bool, err error) {
		list, more, err = pages(q.Limit, q.After, func(after string) ([]watch.Watch, string, error) {
			in.After = after
			page, err := w.registry(cell).List(ctx, in)
			return page.Watches, page.Next, err
		})
		if err != nil {
			list = nil // a part of a cell would pass for all of it
		}
		return list, more, err
	})
}
