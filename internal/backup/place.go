package backup

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
)

// placer finds the cells to import repositories into.
type placer struct {
	*importer
	directory *cells.Directory
	header    Header
	cells     []*cell
	fits      map[string]bool // cells whose volume is that of the document
	planned   bool            // a dry run that would restore the directory: repositories are where the document has them
	lost      bool            // the directory was empty
	stop      func()          // ends the renewal of hold
}

// prepare restores the directory if it is empty, binds the cells to their volumes, and places each repository where a cell has it.
func (p *placer) prepare(ctx context.Context) error {
	members := p.to.Cells.Members()
	p.lost = len(members) == 0
	if p.lost {
		for _, c := range p.header.Cells {
			members = append(members, cells.Member{Name: c.Name, Namespace: c.Prefix})
		}
	}
	for _, m := range members {
		p.cells = append(p.cells, openCell(p.to.Redis, m))
	}
	if err := p.hold(ctx); err != nil {
		return err
	}
	p.planned = p.lost && p.cfg.DryRun
	if p.lost {
		if !p.cfg.DryRun {
			if err := p.directory.Restore(ctx, p.header.Cells, p.header.Epoch); err != nil {
				return err
			}
		}
		for _, c := range p.header.Cells {
			if err := p.report(Item{Outcome: Added, What: ItemCell, ID: c.Name}); err != nil {
				return err
			}
		}
	}
	for _, c := range p.header.Cells {
		at := p.cell(c.Name)
		if at == nil {
			continue
		}
		fits, err := p.bind(ctx, at.Namespace, c.Volume)
		if err != nil {
			return at.Explain(err)
		}
		if p.fits[c.Name] = fits; !fits {
			if err := p.report(Item{Outcome: Kept, What: ItemCell, ID: c.Name, Error: "it has another volume now: states are left out"}); err != nil {
				return err
			}
		}
	}
	if p.cfg.DryRun {
		return nil
	}
	for _, c := range p.cells {
		if err := p.keep(ctx, c); err != nil {
			return c.Explain(err)
		}
	}
	return nil
}

const (
	holdFor       = time.Minute // as the claim of a worker that plans
	holdLost      = time.Hour   // for the repetition of an import that was killed when it had restored the directory
	holdAgain     = time.Second // a worker that ends a plan may shorten it to some seconds
	placeAttempts = 5
)

// hold keeps workers from planning moves, and from giving up a cell that seems to be empty, until release.
func (p *placer) hold(ctx context.Context) error {
	p.stop = func() {}
	if p.cfg.DryRun {
		return nil
	}
	length := holdFor
	if p.lost {
		length = holdLost
	}
	set := func(ctx context.Context) error {
		_, err := p.to.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, c := range p.cells {
				pipe.Set(ctx, c.Namespace.Rebalance(), "import", length)
			}
			return nil
		})
		return err
	}
	if err := set(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(holdAgain)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = set(ctx) // if Redis does not answer, the import fails, too
			}
		}
	}()
	p.stop = func() { cancel(); <-ended }
	return nil
}

// release ends the hold. After a failure that has left a restored directory without all repositories, it lasts until the repetition.
func (p *placer) release(ctx context.Context, done bool) {
	if p.stop == nil {
		return
	}
	p.stop()
	if p.cfg.DryRun || p.lost && !done {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cells.AnswerTimeout)
	defer cancel()
	_, _ = p.to.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error { // else they end by themselves
		for _, c := range p.cells {
			pipe.Del(ctx, c.Namespace.Rebalance())
		}
		return nil
	})
}

// keep places the repositories that a cell has in that cell.
func (p *placer) keep(ctx context.Context, c *cell) error {
	for one, err := range c.registry.All(ctx) {
		if err == nil {
			err = p.keepOne(ctx, c, one.Repo)
		}
		if err != nil {
			return err
		}
	}
	for repos, err := range c.reposWithState(ctx) {
		for _, repo := range repos {
			if err == nil {
				err = p.keepOne(ctx, c, repo)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keepOne places a repository in a cell that has it, unless the one where it is placed has it, too: the directory may be older than the
// cells.
func (p *placer) keepOne(ctx context.Context, c *cell, repo events.RepoPath) error {
	return p.again(ctx, func() error {
		placed := p.directory.Place(repo).Name
		if placed == c.Name {
			return nil
		}
		if at := p.cell(placed); at != nil {
			if has, _, err := at.look(ctx, repo); err != nil || has {
				return err
			}
		}
		if has, _, err := c.look(ctx, repo); err != nil || !has {
			return err
		}
		_, err := p.directory.Flip(ctx, repo, placed, c.Name)
		return err
	})
}

// again calls fn, and again if the directory has changed meanwhile.
func (p *placer) again(ctx context.Context, fn func() error) (err error) {
	for range placeAttempts {
		if err = fn(); !errors.Is(err, cells.ErrChanged) {
			return err
		}
		if err := p.directory.Refresh(ctx); err != nil {
			return err
		}
	}
	return err
}

// place implements [importer.place].
func (p *placer) place(ctx context.Context, one Repository) (to *cell, withState bool, err error) {
	err = p.again(ctx, func() (err error) {
		to, withState, err = p.tryPlace(ctx, one)
		return err
	})
	return to, withState, err
}

func (p *placer) tryPlace(ctx context.Context, one Repository) (to *cell, withState bool, err error) {
	placed := one.Cell
	if !p.planned {
		placed = p.directory.Place(one.Repo).Name
	}
	to = p.cell(placed)
	if to == nil {
		return nil, false, cells.ErrChanged
	}
	has, movedTo, err := to.look(ctx, one.Repo)
	if err != nil {
		return nil, false, err
	}
	if before := p.cell(one.Cell); !has && movedTo == "" && before != nil && before != to {
		_, left, err := before.look(ctx, one.Repo)
		if err != nil {
			return nil, false, err
		}
		if left == "" {
			to = before
		}
	}
	for _, c := range p.cells { // as keep will have placed it
		if has || !p.planned {
			break
		}
		if has, _, err = c.look(ctx, one.Repo); err != nil {
			return nil, false, err
		}
		if has {
			to, movedTo = c, ""
		}
	}
	for range p.cells { // a repository that has left a cell is refused there
		next := p.cell(movedTo)
		if next == nil {
			break
		}
		to = next
		if has, movedTo, err = to.look(ctx, one.Repo); err != nil {
			return nil, false, err
		}
	}
	if !p.cfg.DryRun && to.Name != placed {
		if _, err := p.directory.Flip(ctx, one.Repo, placed, to.Name); err != nil {
			return nil, false, err
		}
	}
	if !p.cfg.DryRun && one.Pinned && (p.lost || !has) && to.Name == one.Cell {
		if _, err := p.directory.Pin(ctx, one.Repo, to.Name); err != nil {
			return nil, false, err
		}
	}
	return to, to.Name == one.Cell && p.fits[to.Name], nil
}

// cell returns the cell of a name, or nil.
func (p *placer) cell(name string) *cell {
	i := slices.IndexFunc(p.cells, func(c *cell) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return p.cells[i]
}
