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

// lease is one that is held, as it is shown.
type lease struct {
	server.Lock
	At     events.Progress // what its holder is at, where that is known
	Forced bool            // it was taken away, and nobody gets it for a moment
}

type leasesPage struct {
	Leases  []lease
	Held    int
	More    int // of them that are not shown
	Waiting int // processes, for any of them
}

const leasesShown = 200

// loadLeases shows all leases, the longest held first.
func (d *Dashboard) loadLeases(ctx context.Context, _ url.Values, _ bool) (any, error) {
	all, err := d.readLeases(ctx)
	if err != nil {
		return nil, err
	}
	p := leasesPage{Held: len(all)}
	for _, l := range all {
		p.Waiting += len(l.Waiters)
	}
	p.Leases, p.More = first(leasesShown, all)
	return p, nil
}

func (d *Dashboard) readLeases(ctx context.Context) ([]lease, error) {
	held, err := d.cfg.Locks.List(ctx)
	if err != nil {
		return nil, err
	}
	busy, err := d.activities(ctx)
	if err != nil {
		return nil, err
	}
	at := map[uint64]state.Activity{}
	for _, a := range busy {
		at[a.Fence] = a
	}
	leases := make([]lease, len(held))
	for i, status := range held {
		leases[i] = lease{Lock: server.NewLock(status), Forced: status.Holder.Job == "" && status.Holder.Operation == ""}
		if a, ok := at[status.Fence]; ok && !leases[i].Forced && strings.EqualFold(a.Repo, status.Key) {
			leases[i].Repo, leases[i].At = a.Repo, a.Progress
		}
	}
	slices.SortFunc(leases, func(a, b lease) int { return cmp.Or(a.Since.Compare(*b.Since), cmp.Compare(a.Repo, b.Repo)) })
	return leases, nil
}

// confirmation asks whether something is really meant.
type confirmation struct {
	Action  string // where the form goes
	Back    string
	Fields  [][2]string // names and values of the form
	Button  string
	Facts   [][2]string // what it is about
	Warning string
	Since   time.Time // of a lease
}

// confirmRelease shows who has the very lease whose fence the query names.
func (d *Dashboard) confirmRelease(w http.ResponseWriter, r *http.Request, _ visitor) {
	repo, fence, err := leaseOf(r.URL.Query())
	if err != nil {
		d.fail(w, r, http.StatusBadRequest, err)
		return
	}
	status, err := d.cfg.Locks.Status(r.Context(), repo.Key())
	switch {
	case err != nil:
		d.fail(w, r, http.StatusServiceUnavailable, errRedis)
	case !status.Held || status.Fence != fence:
		d.fail(w, r, http.StatusConflict, errNotHeld(repo, fence))
	default:
		d.answer(w, r, http.StatusOK, "confirm", "Release the lease on "+repo.String()+"?", confirmation{
			Action: "/dashboard/leases/release", Back: "/dashboard/leases", Button: "Release the lease",
			Fields: [][2]string{{"repo", repo.String()}, {"fence", strconv.FormatUint(fence, 10)}},
			Facts: [][2]string{
				{"Repository", repo.String()}, {"Holder", clip(200, status.Holder.Worker)}, {"Operation", clip(40, status.Holder.Operation)},
				{"Job", clip(200, status.Holder.Job)}, {"Fence", strconv.FormatUint(fence, 10)}, {"Waiting", strconv.Itoa(len(status.Waiters))},
			},
			Since: status.Holder.Since,
			Warning: "The holder's work is cancelled and will be delivered again. The next in line gets the lease after a moment, with a higher fence. " +
				"A worker that hangs can do no harm meanwhile: with this fence it changes nothing any more.",
		})
	}
}

// release takes the lease away, and says who did.
func (d *Dashboard) release(w http.ResponseWriter, r *http.Request, v visitor) {
	repo, fence, err := leaseOf(r.PostForm)
	if err != nil {
		d.fail(w, r, http.StatusBadRequest, err)
		return
	}
	former, err := d.cfg.Locks.ForceRelease(r.Context(), repo.Key(), fence)
	switch {
	case errors.Is(err, locking.ErrNotHeld):
		d.fail(w, r, http.StatusConflict, errNotHeld(repo, fence))
	case err != nil:
		d.fail(w, r, http.StatusServiceUnavailable, errRedis)
	default:
		d.cfg.Log.WarnContext(r.Context(), "lease taken away on the dashboard", "by", v.name, "repo", repo.String(), "fence", fence,
			"worker", former.Worker, "job", former.Job, "operation", former.Operation)
		d.note(w, fmt.Sprintf("Took the lease on %s away from %s, job %s, fence %d.", repo, former.Worker, former.Job, fence))
		http.Redirect(w, r, "/dashboard/leases", http.StatusSeeOther)
	}
}

var errRedis = errors.New("Redis does not answer; look again, then try again")

func errNotHeld(repo events.RepoPath, fence uint64) error {
	return fmt.Errorf("%s is not held with fence %d any more; look at it again", repo, fence)
}

// leaseOf reads which lease is meant.
func leaseOf(values url.Values) (events.RepoPath, uint64, error) {
	repo, err := events.ParseRepoPath(values.Get("repo"))
	if err != nil {
		return events.RepoPath{}, 0, err
	}
	fence, err := strconv.ParseUint(values.Get("fence"), 10, 64)
	if err != nil {
		return events.RepoPath{}, 0, errors.New("want the fence of the lease to take away")
	}
	return repo, fence, nil
}
