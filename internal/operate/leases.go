package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"lockstep/events"
	"lockstep/internal/cache"
	"lockstep/internal/cells"
	"lockstep/locking"
)

// Lease is the lease of a repository.
type Lease struct {
	Repo        string     `json:"repo"`
	Cell        string     `json:"cell,omitempty"` // in lists, if there are several
	Held        bool       `json:"held"`
	Fence       uint64     `json:"fence,omitempty"` // of the last grant, even if the lease is free
	Holder      *Party     `json:"holder,omitempty"`
	Since       *time.Time `json:"since,omitempty"`
	RemainingMS int64      `json:"remaining_ms,omitempty"` // until the lease expires, unless renewed
	Waiters     []Party    `json:"waiters"`                // in queue order, one per process
}

// Party is the holder of a lease or a waiter.
type Party struct {
	Worker    string `json:"worker"`
	Job       string `json:"job"`
	Operation string `json:"operation"`
}

func newLease(cell string, s locking.Status) Lease {
	lease := Lease{Repo: s.Key, Cell: cell, Held: s.Held, Fence: s.Fence, Waiters: []Party{}}
	if s.Held {
		since := s.Holder.Since.UTC()
		lease.Holder, lease.Since = &Party{s.Holder.Worker, s.Holder.Job, s.Holder.Operation}, &since
		lease.RemainingMS = s.Holder.Remaining.Milliseconds()
	}
	for _, w := range s.Waiters {
		lease.Waiters = append(lease.Waiters, Party(w))
	}
	return lease
}

// ReleasedLease names the former holder of a lease that was released by force.
type ReleasedLease struct {
	Repo  string `json:"repo"`
	Fence uint64 `json:"fence"`
	From  Party  `json:"from"`
}

// Leases are the leases of a deployment. A method for one repository is given a cell, or "" for that of the repository,
// and returns [cells.ErrNoCell].
type Leases struct {
	Cells  *cells.Set
	Shared bool // callers share their lists, which are cached: for endpoints that need no authentication

	lists sync.Map // cells.Member → *cache.Cache[[]locking.Status]
}

const listTimeout = 10 * time.Second

func (l *Leases) in(cell cells.Member) *locking.Inspector {
	return locking.NewInspector(l.Cells.Redis(), cell.Namespace.Locks())
}

func (l *Leases) of(name string, repo events.RepoPath) (cells.Member, error) {
	if name == "" {
		return l.Cells.Of(repo)
	}
	cell, ok := l.Cells.Cell(name)
	if !ok {
		return cells.Member{}, fmt.Errorf("cell %.70q: %w", name, cells.ErrNoCell)
	}
	return cell, nil
}

// list returns the list of a cell that callers share.
func (l *Leases) list(cell cells.Member) *cache.Cache[[]locking.Status] {
	list, _ := l.lists.LoadOrStore(cell, &cache.Cache[[]locking.Status]{Timeout: listTimeout})
	return list.(*cache.Cache[[]locking.Status])
}

// List returns the held leases of all cells that answer, by repository, and the other cells. It scans all keys of Redis.
func (l *Leases) List(ctx context.Context) (list []Lease, missing []cells.Missing, err error) {
	byRepo := func(a, b Lease) int { return cmp.Compare(a.Repo, b.Repo) }
	list, _, missing, err = Gather(ctx, l.Cells, 0, byRepo, func(cell cells.Member) (list []Lease, more bool, err error) {
		read := l.in(cell).List
		if l.Shared {
			read = func(ctx context.Context) ([]locking.Status, error) { return l.list(cell).Get(ctx, l.in(cell).List) }
		}
		held, err := read(ctx)
		for _, status := range held {
			list = append(list, newLease(Shown(l.Cells, cell), status))
		}
		return list, false, err
	})
	return list, missing, err
}

// Get returns the lease of a repository, which may be free.
func (l *Leases) Get(ctx context.Context, cell string, repo events.RepoPath) (Lease, error) {
	member, err := l.of(cell, repo)
	if err != nil {
		return Lease{}, err
	}
	status, err := l.in(member).Status(ctx, repo.Key())
	return newLease("", status), member.Explain(err)
}

// Release releases the lease with that fence by force, as [locking.Inspector.ForceRelease] does, and returns
// [locking.ErrNotHeld] if it is not held any more.
func (l *Leases) Release(ctx context.Context, cell string, repo events.RepoPath, fence uint64) (ReleasedLease, error) {
	member, err := l.of(cell, repo)
	if err != nil {
		return ReleasedLease{}, err
	}
	former, err := l.in(member).ForceRelease(ctx, repo.Key(), fence)
	if errors.Is(err, locking.ErrNotHeld) {
		err = fmt.Errorf("%w; look at the lease again for its current fence", err)
	}
	l.list(member).Forget() // even after an error: the lease may have been released
	return ReleasedLease{repo.String(), fence, Party{former.Worker, former.Job, former.Operation}}, member.Explain(err)
}
