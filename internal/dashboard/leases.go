package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/operate"
	"lockstep/internal/state"
	"lockstep/locking"
)

type lease struct {
	operate.Lease
	At     events.Progress // zero if unknown
	Forced bool            // released by force; it cannot be acquired again for a moment
}

type leasesPage struct {
	Leases  []lease
	Held    int
	More    int      // number of leases omitted
	Waiting int      // number of waiters for all leases
	Cells   bool     // the leases are those of several cells
	Missing []string // cells that do not answer
}

const leasesShown = 200

// loadLeases loads the held leases, oldest first.
func (d *Dashboard) loadLeases(ctx context.Context, _ url.Values, _ bool) (any, error) {
	all, missing, err := d.readLeases(ctx)
	if err != nil {
		return nil, err
	}
	p := leasesPage{Held: len(all), Cells: !d.cfg.Leases.Cells.IsSingle(), Missing: missing}
	for _, l := range all {
		p.Waiting += len(l.Waiters)
	}
	p.Leases, p.More = first(leasesShown, all)
	return p, nil
}

// readLeases returns the held leases, and the names of the cells that do not answer. It knows the progress of work in
// the dashboard's own cell.
func (d *Dashboard) readLeases(ctx context.Context) (leases []lease, missing []string, err error) {
	held, unanswered, err := d.cfg.Leases.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	busy, err := d.cfg.Activities(ctx)
	if err != nil && d.cfg.Leases.Cells.IsSingle() {
		return nil, nil, err // with cells, the dashboard's own one is missing, like any other
	}
	byFence := map[uint64]state.Activity{}
	for _, a := range busy {
		byFence[a.Fence] = a
	}
	for _, h := range held {
		one := lease{Lease: h, Forced: h.Holder.Job == "" && h.Holder.Operation == ""}
		if a, ok := byFence[h.Fence]; ok && h.Cell == d.cfg.Cell && !one.Forced && strings.EqualFold(a.Repo, h.Repo) {
			one.Repo, one.At = a.Repo, a.Progress
		}
		leases = append(leases, one)
	}
	slices.SortFunc(leases, func(a, b lease) int { return cmp.Or(a.Since.Compare(*b.Since), cmp.Compare(a.Repo, b.Repo)) })
	return leases, operate.Names(unanswered), nil
}

type confirmation struct {
	Action  string // URL that the form is posted to
	Back    string
	Fields  [][2]string // hidden form fields: name, value
	Button  string
	Facts   [][2]string // label, value
	Warning string
	Since   time.Time // when the lease was acquired; zero if the action is not about a lease
}

func (d *Dashboard) confirmRelease(w http.ResponseWriter, r *http.Request, _ visitor) {
	repo, fence, err := leaseOf(r.URL.Query())
	if err != nil {
		d.fail(w, r, err)
		return
	}
	cell := r.FormValue("cell")
	held, err := d.cfg.Leases.Get(r.Context(), cell, repo)
	if err == nil && (!held.Held || held.Fence != fence) {
		err = fmt.Errorf("%s with fence %d: %w", repo, fence, locking.ErrNotHeld)
	}
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.answer(w, r, http.StatusOK, "confirm", "Release the lease on "+repo.String()+"?", confirmation{
		Action: "/dashboard/leases/release", Back: "/dashboard/leases", Button: "Release the lease",
		Fields: [][2]string{{"repo", repo.String()}, {"fence", strconv.FormatUint(fence, 10)}, {"cell", cell}},
		Facts: [][2]string{
			{"Repository", repo.String()}, {"Holder", clip(200, held.Holder.Worker)},
			{"Operation", clip(40, held.Holder.Operation)},
			{"Job", clip(200, held.Holder.Job)}, {"Fence", strconv.FormatUint(fence, 10)},
			{"Waiting", strconv.Itoa(len(held.Waiters))},
		},
		Since: *held.Since,
		Warning: "The holder's work is cancelled and will be delivered again. After a short delay the next " +
			"waiter gets the lease, with a higher fence. A worker that hangs can do no harm: " +
			"the old fence no longer allows any change.",
	})
}

// release releases the lease by force and logs who requested it.
func (d *Dashboard) release(w http.ResponseWriter, r *http.Request, v visitor) {
	repo, fence, err := leaseOf(r.PostForm)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	released, err := d.cfg.Leases.Release(r.Context(), r.FormValue("cell"), repo, fence)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	former := released.From
	d.cfg.Log.WarnContext(r.Context(), "lease taken away on the dashboard", "by", v.name, "repo", repo.String(),
		"fence", fence, "worker", former.Worker, "job", former.Job, "operation", former.Operation)
	d.done(w, r, "/dashboard/leases", fmt.Sprintf("Took the lease on %s away from %s, job %s, fence %d.", repo,
		former.Worker, former.Job, fence))
}

func leaseOf(values url.Values) (events.RepoPath, uint64, error) {
	repo, err := events.ParseRepoPath(values.Get("repo"))
	if err != nil {
		return events.RepoPath{}, 0, badQuery(err)
	}
	fence, err := strconv.ParseUint(values.Get("fence"), 10, 64)
	if err != nil {
		return events.RepoPath{}, 0, badQuery(errors.New("fence: want the number of the lease to release"))
	}
	return repo, fence, nil
}
