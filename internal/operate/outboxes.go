package operate

import (
	"cmp"
	"context"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/notify"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Outboxes are the notifications of a deployment that wait to be posted to apps.
type Outboxes struct {
	Cells *cells.Set
}

func (o *Outboxes) in(cell cells.Member) notify.Outboxes {
	return notify.Outboxes{Redis: o.Cells.Redis(), Namespace: cell.Namespace}
}

// Apps returns the apps with waiting notifications, those with the most first, over all cells that answer, and the
// other cells.
func (o *Outboxes) Apps(ctx context.Context) ([]notify.App, []cells.Missing, error) {
	byName := map[string]notify.App{}
	missing, err := Each(ctx, o.Cells, func(cell cells.Member) error {
		apps, err := o.in(cell).Apps(ctx)
		for _, app := range apps {
			all, known := byName[app.Name]
			if known {
				app.Items, app.Bytes, app.Repos = app.Items+all.Items, app.Bytes+all.Bytes, app.Repos+all.Repos
				app.Next = earlier(app.Next, all.Next)
			}
			byName[app.Name] = app
		}
		return err
	})
	list := make([]notify.App, 0, len(byName))
	for _, app := range byName {
		list = append(list, app)
	}
	slices.SortFunc(list, func(a, b notify.App) int {
		return cmp.Or(cmp.Compare(b.Items, a.Items), cmp.Compare(a.Name, b.Name))
	})
	return list, missing, err
}

// earlier returns the earlier of two times; a zero one is unknown.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Of returns what waits for an app, a row for each repository, the oldest first: up to limit rows, whether there are
// more, and the cells that do not answer.
func (o *Outboxes) Of(
	ctx context.Context, app string, limit int,
) (list []notify.Box, more bool, missing []cells.Missing, err error) {
	oldest := func(a, b notify.Box) int { return a.Queued.Compare(b.Queued) }
	return Gather(ctx, o.Cells, limit, oldest, func(cell cells.Member) ([]notify.Box, bool, error) {
		boxes, err := o.in(cell).Boxes(ctx, app, limit+1)
		for i := range boxes {
			boxes[i].Cell = Shown(o.Cells, cell)
		}
		return boxes, false, err // Gather sees that there are more than limit
	})
}

const appsAsked = 1000 // about a repository

// About returns what waits to be posted about a repository to the apps that watch it, or were given anything of it, by
// app.
func (o *Outboxes) About(ctx context.Context, repo events.RepoPath, given []state.Given) ([]notify.Box, error) {
	cell, err := o.Cells.Of(repo)
	if err != nil {
		return nil, err
	}
	watched, err := watch.NewRegistry(o.Cells.Redis(), cell.Namespace).Of(ctx, repo)
	if err != nil {
		return nil, cell.Explain(err)
	}
	var apps []string
	for _, w := range watched.Watches {
		apps = append(apps, w.App)
	}
	for _, g := range given {
		apps = append(apps, g.App)
	}
	slices.Sort(apps)
	apps = slices.Compact(apps)
	boxes, err := o.in(cell).About(ctx, repo, apps[:min(len(apps), appsAsked)])
	return boxes, cell.Explain(err)
}

// Failing returns the number of outboxes whose first notification has failed, and some of their apps, sorted, in the
// cells that answer.
func (o *Outboxes) Failing(ctx context.Context) (boxes int64, apps []string, err error) {
	_, err = Each(ctx, o.Cells, func(cell cells.Member) error {
		n, some, err := o.in(cell).Failing(ctx)
		boxes, apps = boxes+n, append(apps, some...)
		return err
	})
	slices.Sort(apps)
	return boxes, slices.Compact(apps), err
}

// Sent says that waiting notifications are due now.
type Sent struct {
	App     string   `json:"app"`
	Repos   int      `json:"repositories"` // whose notifications were not due, at most 10,000 in each cell
	Missing []string `json:"missing_cells,omitempty"`
}

// Send makes what waits for an app due now, instead of after the delay since its last failure.
func (o *Outboxes) Send(ctx context.Context, app string) (Sent, error) {
	sent := Sent{App: app}
	missing, err := Each(ctx, o.Cells, func(cell cells.Member) error {
		n, err := o.in(cell).SendNow(ctx, app)
		sent.Repos += n
		return err
	})
	sent.Missing = Names(missing)
	return sent, err
}
