package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/spool"
	"lockstep/internal/watch"
)

// cellIntakes takes webhooks for the watches of all cells. Each cell has an intake and a spool of its own, so
// that one that does not answer holds up no other. Each deduplicates deliveries by itself, in the step that
// adds the changes: if one fails, the forge repeats the delivery, and the others ignore it.
type cellIntakes struct {
	cfg  Config
	own  *intake.Intake // of this process' cell
	base intake.Config  // of the others, without Registry, Spool and Owns
	open func(events.Namespace) *watch.Registry

	mu      sync.Mutex
	ctx     context.Context // while the spools are drained
	others  map[cells.Member]*cellIntake
	drains  sync.WaitGroup
	stopped bool
}

type cellIntake struct {
	*intake.Intake
	spool *spool.Spool // optional
}

// Take gives a delivery to all cells at once. Its outcome is that of the cells with the most to do.
func (c *cellIntakes) Take(ctx context.Context, src forge.Source, d forge.Delivery) (intake.Outcome, error) {
	intakes, err := c.all()
	if err != nil {
		return intake.Outcome{}, err
	}
	outcomes, errs := make([]intake.Outcome, len(intakes)), make([]error, len(intakes))
	var group sync.WaitGroup
	for i, in := range intakes {
		group.Go(func() { outcomes[i], errs[i] = in.Take(ctx, src, d) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return intake.Outcome{}, err
	}
	return combine(outcomes), nil
}

// rank orders results by how much they have led to.
var rank = map[string]int{intake.Ignored: 0, intake.Duplicate: 1, intake.Spooled: 2, intake.Accepted: 3}

func combine(outcomes []intake.Outcome) intake.Outcome {
	out := outcomes[0]
	changes, unwatched := 0, true
	for _, one := range outcomes {
		changes, unwatched = changes+one.Changes, unwatched && one.Unwatched
		if rank[one.Result] > rank[out.Result] {
			out = one
		}
	}
	out.Changes, out.Unwatched = changes, unwatched
	return out
}

// all returns the intakes of all cells, the own one first. It opens those of cells that were added meanwhile.
func (c *cellIntakes) all() ([]*intake.Intake, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	intakes := []*intake.Intake{c.own}
	for _, m := range cells.All(nil, c.cfg.cells).Members() {
		if m.Name == c.cfg.Cell {
			continue
		}
		if c.others[m] == nil {
			if err := c.add(m); err != nil {
				return nil, err
			}
		}
		intakes = append(intakes, c.others[m].Intake)
	}
	return intakes, nil
}

// add opens the intake of a cell. The caller holds the lock.
func (c *cellIntakes) add(m cells.Member) error {
	if c.stopped {
		return errors.New("this process is stopping")
	}
	cfg, one := c.base, &cellIntake{}
	cfg.Registry, cfg.Owns = c.open(m.Namespace), owns(c.cfg.cells, m.Name)
	if c.own.Spools() {
		var err error
		if one.spool, err = spool.Open(filepath.Join(c.cfg.Spool, m.Name), maxSpoolBytes); err != nil {
			return fmt.Errorf("cell %s: %w", m.Name, err)
		}
		cfg.Spool = one.spool
	}
	var err error
	if one.Intake, err = intake.New(cfg); err != nil {
		return err
	}
	c.others[m] = one
	c.drain(one)
	return nil
}

// owns returns whether an unknown repository is to be watched automatically in a cell.
func owns(directory *cells.Directory, name string) func(events.RepoPath) bool {
	return func(repo events.RepoPath) bool { return directory.Place(repo).Name == name }
}

// drain publishes what a cell's spool has until Run ends. The caller holds the lock.
func (c *cellIntakes) drain(one *cellIntake) {
	if c.ctx != nil {
		ctx := c.ctx
		c.drains.Go(func() { one.Run(ctx) })
	}
}

// Run drains the spools of the other cells until ctx is done.
func (c *cellIntakes) Run(ctx context.Context) {
	c.mu.Lock()
	c.ctx = ctx
	for _, one := range c.others {
		c.drain(one)
	}
	c.mu.Unlock()
	if _, err := c.all(); err != nil { // a spool of an earlier process is drained before the first webhook
		c.cfg.Log.WarnContext(ctx, "spool of a cell not opened", "error", err)
	}
	<-ctx.Done()
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.drains.Wait()
}

// spooled returns the bytes in the spools of the other cells.
func (c *cellIntakes) spooled() (bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.others {
		if one.spool != nil {
			bytes += one.spool.Bytes()
		}
	}
	return bytes
}
