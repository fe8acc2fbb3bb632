package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/redisx"
	"lockstep/internal/spool"
	"lockstep/internal/watch"
)

// cellIntakes takes webhooks for the watches of all cells, or of the only deployment. Each cell has an intake and a
// spool of its own, so that one that does not answer holds up no other. Each deduplicates deliveries by itself, in the
// step that adds the changes: if one fails, the forge repeats the delivery, and the others ignore it.
type cellIntakes struct {
	cfg    Config
	client redis.UniversalClient
	base   intake.Config // of all, without Registry, Spool and Owns
	spools bool          // deliveries are kept on disk while Redis is unavailable

	mu     sync.Mutex
	opened map[cells.Member]*cellIntake
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

// all returns the intakes of all cells, that of this process' cell first. It opens those of cells that were added
// meanwhile.
func (c *cellIntakes) all() (intakes []*cellIntake, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	members := []cells.Member{{Name: c.cfg.Cell, Namespace: c.cfg.Namespace()}}
	for _, m := range cellsOf(c.cfg, c.client).Members() {
		if m.Name != c.cfg.Cell {
			members = append(members, m)
		}
	}
	for _, m := range members {
		if c.opened[m] == nil {
			one, failed := c.open(m)
			if failed != nil {
				err = errors.Join(err, m.Explain(failed))
				continue
			}
			c.opened[m] = one
		}
		intakes = append(intakes, c.opened[m])
	}
	return intakes, err
}

// open opens the intake of a cell.
func (c *cellIntakes) open(m cells.Member) (one *cellIntake, err error) {
	cfg := c.base
	cfg.Registry = watch.NewRegistry(c.client, m.Namespace)
	if c.cfg.cells != nil {
		cfg.Owns = func(repo events.RepoPath) bool { return c.cfg.cells.Place(repo).Name == m.Name }
	}
	one = &cellIntake{}
	if c.spools {
		dir := c.cfg.Spool
		if m.Name != c.cfg.Cell {
			dir = filepath.Join(dir, m.Name)
		}
		if one.spool, err = spool.Open(dir, maxSpoolBytes); err != nil {
			return nil, fmt.Errorf("%w; choose another directory with --spool", err)
		}
		cfg.Spool = one.spool
	}
	one.Intake, err = intake.New(cfg)
	return one, err
}

// Run drains the spools until ctx is done, also those of cells that are added meanwhile.
func (c *cellIntakes) Run(ctx context.Context) {
	var drains sync.WaitGroup
	defer drains.Wait()
	drained, failing := map[*cellIntake]bool{}, false
	for {
		intakes, err := c.all()
		if err != nil && !failing {
			c.cfg.Log.WarnContext(ctx, "spool of a cell not opened, will retry", "error", err)
		}
		failing = err != nil
		for _, one := range intakes {
			if !drained[one] {
				drained[one] = true
				drains.Go(func() { one.Run(ctx) })
			}
		}
		if !redisx.Pause(ctx, time.Second) {
			return
		}
	}
}

// spooled returns the bytes in the spools of all cells.
func (c *cellIntakes) spooled() (bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.opened {
		bytes += one.spool.Bytes()
	}
	return bytes
}
