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
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/locking"
)

type lease struct {
	server.Lock
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
	p := leasesPage{Held: len(all), Cells: d.cfg.AllLocks != nil, Missing: missing}
	for _, l := range all {
		p.Waiting += len(l.Waiters)
	}
	p.Leases, p.More = first(leasesShown, all)
	return p, nil
}

// readLeases returns the held leases, and the cells that do not answer. It knows the progress of work in the
// dashboard's own cell.
func (d *Dashboard) readLeases(ctx context.Context) (leases []lease, missing []string, err error) {
	held := map[string][]locking.Status{}
	if d.cfg.AllLocks != nil {
		held, missing, err = d.cfg.AllLocks(ctx)
	} else {
		held[""], err = d.cfg.Locks.List(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	busy, err := d.activities(ctx)
	if err != nil && d.cfg.AllLocks == nil {
		return nil, nil, err // with cells, the dashboard's own one is missing, like any other
	}
	byFence := map[uint64]state.Activity{}
	for _, a := range busy {
		byFence[a.Fence] = a
	}
	for cell, some := range held {
		for _, status := range some {
			one := lease{Lock: server.NewLock(status), Forced: status.Holder.Job == "" && status.Holder.Operation == ""}
			one.Cell = cell
			if a, ok := byFence[status.Fence]; ok && cell == d.cfg.Cell && !one.Forced && strings.EqualFold(a.Repo, status.Key) {
				one.Repo, one.At = a.Repo, a.Progress
			}
			leases = append(leases, one)
		}
	}
	slices.SortFunc(leases, func(a, b lease) int { return cmp.Or(a.Since.Compare(*b.Since), cmp.Compare(a.Repo, b.Repo)) })
	return leases, missing, nil
}

// locksOf returns the locks of a cell, or those of a repository's cell if it is "".
func (d *Dashboard) locksOf(cell string) (server.Locks, error) {
	if cell == "" || d.cfg.LocksOf == nil {
		return d.cfg.Locks, nil
	}
	return d.cfg.LocksOf(cell)
}

func (d *Dashboard) leaseStatus(ctx context.Context, cell string, repo events.RepoPath) (locking.Status, error) {
	locks, err := d.locksOf(cell)
	if err != nil {
		return locking.Status{}, err
	}
	return locks.Status(ctx, repo.Key())
}

func (d *Dashboard) forceRelease(
	ctx context.Context, cell string, repo events.RepoPath, fence uint64,
) (former locking.Holder, err error) {
	locks, err := d.locksOf(cell)
	if err != nil {
		return locking.Holder{}, err
	}
	return locks.ForceRelease(ctx, repo.Key(), fence)
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
		d.fail(w, r, http.StatusBadRequest, err)
		return
	}
	cell := r.FormValue("cell")
	status, err := d.leaseStatus(r.Context(), cell, repo)
	switch {
	case errors.Is(err, ErrNotFound):
		d.fail(w, r, http.StatusNotFound, err)
	case err != nil:
		d.fail(w, r, http.StatusServiceUnavailable, errRedis)
	case !status.Held || status.Fence != fence:
		d.fail(w, r, http.StatusConflict, errNotHeld(repo, fence))
	default:
		d.answer(w, r, http.StatusOK, "confirm", "Release the lease on "+repo.String()+"?", confirmation{
			Action: "/dashboard/leases/release", Back: "/dashboard/leases", Button: "Release the lease",
			Fields: [][2]string{{"repo", repo.String()}, {"fence", strconv.FormatUint(fence, 10)}, {"cell", cell}},
			Facts: [][2]string{
				{"Repository", repo.String()}, {"Holder", clip(200, status.Holder.Worker)},
				{"Operation", clip(40, status.Holder.Operation)},
				{"Job", clip(200, status.Holder.Job)}, {"Fence", strconv.FormatUint(fence, 10)},
				{"Waiting", strconv.Itoa(len(status.Waiters))},
			},
			Since: status.Holder.Since,
			Warning: "The holder's work is cancelled and will be delivered again. After a short delay the next " +
				"waiter gets the lease, with a higher fence. A worker that hangs can do no harm: " +
				"the old fence no longer allows any change.",
		})
	}
}

// release releases the lease by force and logs who requested it.
func (d *Dashboard) release(w http.ResponseWriter, r *http.Request, v visitor) {
	repo, fence, err := leaseOf(r.PostForm)
	if err != nil {
		d.fail(w, r, http.StatusBadRequest, err)
		return
	}
	former, err := d.forceRelease(r.Context(), r.FormValue("cell"), repo, fence)
	switch {
	case errors.Is(err, ErrNotFound):
		d.fail(w, r, http.StatusNotFound, err)
	case errors.Is(err, locking.ErrNotHeld):
		d.fail(w, r, http.StatusConflict, errNotHeld(repo, fence))
	case err != nil:
		d.fail(w, r, http.StatusServiceUnavailable, errRedis)
	default:
		d.cfg.Log.WarnContext(r.Context(), "lease taken away on the dashboard", "by", v.name, "repo", repo.String(),
			"fence", fence, "worker", former.Worker, "job", former.Job, "operation", former.Operation)
		d.setFlash(w, fmt.Sprintf("Took the lease on %s away from %s, job %s, fence %d.", repo, former.Worker,
			former.Job, fence))
		http.Redirect(w, r, "/dashboard/leases", http.StatusSeeOther)
	}
}

var errRedis = errors.New("Redis does not answer; check whether the change was made, then try again")

func errNotHeld(repo events.RepoPath, fence uint64) error {
	return fmt.Errorf("the lease on %s is no longer held with fence %d; reload the page", repo, fence)
}

func leaseOf(values url.Values) (events.RepoPath, uint64, error) {
	repo, err := events.ParseRepoPath(values.Get("repo"))
	if err != nil {
		return events.RepoPath{}, 0, err
	}
	fence, err := strconv.ParseUint(values.Get("fence"), 10, 64)
	if err != nil {
		return events.RepoPath{}, 0, errors.New("fence: want the number of the lease to release")
	}
	return repo, fence, nil
}
