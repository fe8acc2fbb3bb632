package move

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// Config configures a [Mover]. Fields without a default are required.
type Config struct {
	Cell      string // the cell that repositories are moved to
	Directory *cells.Directory
	Redis     redis.UniversalClient // for the keys of all cells; must not retry by itself
	PubSub    redis.UniversalClient // defaults to Redis
	Volume    *volume.Volume        // of Cell
	Locker    *locking.Locker       // of Cell
	Worker    string                // name of this process

	// Fetch publishes changes in Cell that fetch the published refs from the remote, and reports whether there are some that
	// not only watches have requested. known is the state in the old cell.
	Fetch func(ctx context.Context, repo events.RepoPath, known state.Repo) (byHand bool, err error)

	Lease   time.Duration // of the leases in other cells; 10 s
	Wait    time.Duration // for a lease; 60 s
	Confirm time.Duration // how long to wait until a replica has the mark; 5 s

	Step func(name string, repo events.RepoPath) // called after each step, for crash tests; optional
	Log  *slog.Logger
}

const (
	atOnce       = 4                      // maximum moves in flight in this process
	pauseBetween = 100 * time.Millisecond // between the begins of two moves
)

// Mover moves repositories to its cell, as requested in the cell's [Queue].
type Mover struct {
	cfg   Config
	queue *Queue
}

// New returns a Mover.
func New(cfg Config) (*Mover, error) {
	self, ok := cfg.Directory.Cell(cfg.Cell)
	if !ok {
		return nil, cells.ErrNoCell
	}
	cfg.Lease, cfg.Wait = cmp.Or(cfg.Lease, 10*time.Second), cmp.Or(cfg.Wait, time.Minute)
	cfg.Confirm, cfg.Log = cmp.Or(cfg.Confirm, 5*time.Second), cmp.Or(cfg.Log, slog.Default())
	if cfg.PubSub == nil {
		cfg.PubSub = cfg.Redis
	}
	if cfg.Step == nil {
		cfg.Step = func(string, events.RepoPath) {}
	}
	return &Mover{cfg: cfg, queue: NewQueue(cfg.Redis, self.Prefix)}, nil
}

const (
	pollEvery  = time.Second
	claimHold  = 3 // leases, after which another worker tries
	firstRetry = time.Second
	lastRetry  = time.Minute
	refusedFor = time.Hour
)

// Run moves repositories until ctx is done. It then waits for the moves in flight, which end soon.
func (m *Mover) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, atOnce)
	for ctx.Err() == nil {
		claimed, err := m.queue.claim(ctx, max(1, cap(slots)-len(slots)), claimHold*m.cfg.Lease)
		if err != nil && ctx.Err() == nil {
			m.cfg.Log.WarnContext(ctx, "moves to this cell cannot be claimed, will retry", "error", err)
		}
		for _, r := range claimed {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			running.Go(func() {
				defer func() { <-slots }()
				_ = m.Move(ctx, r) // is logged, and kept in the request
			})
			pause(ctx, pauseBetween)
		}
		if len(claimed) == 0 {
			pause(ctx, pollEvery)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Move moves a repository, or continues to. It removes the request when it is done, and otherwise keeps it
// with the error, to be tried again.
func (m *Mover) Move(ctx context.Context, r Request) error {
	began := time.Now()
	log := m.cfg.Log.With("repo", r.Repo.String(), "from", r.From, "to", m.cfg.Cell)
	a := &attempt{Mover: m, req: r, move: state.CellMove{Repo: r.Repo, Cell: r.From, Epoch: r.Epoch}}
	err := m.claimed(ctx, r, func() error { return a.run(ctx) })
	if err != nil {
		return m.retry(ctx, log, r, a, err)
	}
	if err := m.queue.done(ctx, r.Repo); err != nil {
		return err
	}
	if a.moot {
		log.InfoContext(ctx, "move dropped: the weights have changed, or the cell was lost")
		return nil
	}
	m.cfg.Step("done", r.Repo)
	log.InfoContext(ctx, "repository moved to this cell", "took", time.Since(began))
	return nil
}

// retry records why an attempt failed, and when the next one is, unless another worker has completed the move
// meanwhile. It returns the error.
func (m *Mover) retry(ctx context.Context, log *slog.Logger, r Request, a *attempt, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if requested, kept := a.isRequested(ctx); kept == nil && !requested {
		log.InfoContext(ctx, "move ended by another worker", "error", err)
		return err
	}
	delay := min(firstRetry<<min(r.Tries, 10), lastRetry)
	r.Refused = events.DispositionOf(err) == events.Permanent && !a.marked
	if r.Refused {
		delay = refusedFor
		if cleared := a.abandon(ctx); cleared != nil {
			log.WarnContext(ctx, "refused move cannot be ended, will retry", "error", cleared)
			r.Refused, delay = false, lastRetry
		}
	}
	r.Error, r.Class, r.Tries = err.Error(), events.ClassOf(err), r.Tries+1
	if kept := m.queue.retry(ctx, r, delay/2+rand.N(delay/2), a.marked); kept != nil {
		err = errors.Join(err, kept)
	}
	log.WarnContext(ctx, "move not completed, will retry", "marked", a.marked, "error", err, "delay", delay)
	return err
}

// claimed calls fn and renews the claim of a request meanwhile.
func (m *Mover) claimed(ctx context.Context, r Request, fn func() error) error {
	ctx, stop := context.WithCancel(ctx)
	var renewal sync.WaitGroup
	renewal.Go(func() {
		for {
			if pause(ctx, m.cfg.Lease); ctx.Err() != nil {
				return
			}
			if err := m.queue.renew(ctx, r.Repo, claimHold*m.cfg.Lease); err != nil && ctx.Err() == nil {
				m.cfg.Log.WarnContext(ctx, "claim of a move cannot be renewed, will retry", "repo", r.Repo.String(), "error", err)
			}
		}
	})
	defer renewal.Wait()
	defer stop()
	return fn()
}

// cell is what a move reads and writes of a cell in Redis.
type cell struct {
	cells.Cell
	states  *state.Store
	watches *watch.Registry
}

func (m *Mover) open(name string) (cell, error) {
	c, ok := m.cfg.Directory.Cell(name)
	if !ok {
		return cell{}, events.Errorf(events.Permanent, events.ClassConfig, "cell %s: %w", name, cells.ErrNoCell)
	}
	return cell{c, state.NewStore(m.cfg.Redis, c.Prefix), watch.NewRegistry(m.cfg.Redis, c.Prefix)}, nil
}
