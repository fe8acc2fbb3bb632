package cells

import (
	"cmp"
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

var (
	//go:embed update.lua
	updateSource string
	//go:embed place.lua
	placeSource string

	updateScript = redis.NewScript(updateSource)
	placeScript  = redis.NewScript(placeSource)
)

const (
	maxAttempts = 100 // at an edit that others change the directory under
	placeBatch  = 500
)

// errUnchanged ends an edit that changes nothing.
var errUnchanged = errors.New("unchanged")

// Add adds a cell, or changes the weight or the prefix of one, and makes a draining or gone cell active. The
// prefix defaults to [PrefixOf] its name, or to what it was, and cannot be changed while repositories are
// placed in the cell. weight 0 means [DefaultWeight], or what it was. Repositories stay where they are until
// they have been moved, but the first cell gets all at once.
func (d *Directory) Add(ctx context.Context, name string, prefix events.Namespace, weight int) (Cell, error) {
	err := d.edit(ctx, func(cells []Cell) ([]Cell, error) {
		c, known := find(cells, name)
		c.Name, c.State = name, Active
		c.Weight = cmp.Or(weight, c.Weight, DefaultWeight)
		if known && prefix != "" && prefix != c.Prefix && c.Placed > 0 {
			return nil, fmt.Errorf("cell %s has the prefix %s, and repositories; add a cell with another name", name, c.Prefix)
		}
		c.Prefix = cmp.Or(prefix, c.Prefix, PrefixOf(name))
		if c.Prefix == DefaultPrefix {
			return nil, fmt.Errorf("cell %s: the prefix %s is that of the directory", name, c.Prefix)
		}
		if !slices.ContainsFunc(cells, func(o Cell) bool { return o.Placed > 0 }) {
			c.Placed = c.Weight
		}
		for _, o := range cells {
			if o.Name != name && o.Prefix == c.Prefix {
				return nil, fmt.Errorf("cell %s: the prefix %s is that of cell %s", name, c.Prefix, o.Name)
			}
		}
		if !known && len(cells) >= MaxCells {
			return nil, fmt.Errorf("cell %s: the directory has %d cells, the most it can have", name, len(cells))
		}
		return []Cell{c}, nil
	})
	if err != nil {
		return Cell{}, err
	}
	c, _ := d.Cell(name)
	return c, nil
}

// epochGap is added to the epoch of a directory that was lost, for the changes since it was exported: moves are ordered
// by it.
const epochGap = 1_000_000

// Restore adds cells as they were in a directory that was lost, which had the epoch. It fails with [ErrChanged] if the
// directory has cells.
func (d *Directory) Restore(ctx context.Context, lost []Cell, epoch int64) error {
	if err := d.redis.SetNX(ctx, epochKey, epoch+epochGap, 0).Err(); err != nil {
		return fmt.Errorf("restore the directory of cells: %w", err)
	}
	return d.edit(ctx, func(cells []Cell) ([]Cell, error) {
		if slices.ContainsFunc(cells, func(c Cell) bool { return c.State != Gone }) {
			return nil, ErrChanged
		}
		changed := slices.Clone(lost)
		for i := range changed {
			gone, _ := find(cells, changed[i].Name)
			changed[i].text = gone.text
		}
		return changed, nil
	})
}

// Drain marks a cell as draining: its repositories shall be moved to the other cells. It fails if no other
// cell is active.
func (d *Directory) Drain(ctx context.Context, name string) (Cell, error) {
	err := d.edit(ctx, func(cells []Cell) ([]Cell, error) {
		c, err := removable(cells, name)
		if err != nil {
			return nil, err
		}
		if c.State == Gone {
			return nil, errUnchanged
		}
		c.State = Draining
		return []Cell{c}, nil
	})
	if err != nil {
		return Cell{}, err
	}
	c, _ := d.Cell(name)
	return c, nil
}

// Lose places the repositories of a lost cell elsewhere at once, by the weights of now, without moving
// anything, and removes its overrides. It fails if no other cell is active, or if no other cell has been
// given repositories yet.
func (d *Directory) Lose(ctx context.Context, name string) (Cell, error) {
	err := d.edit(ctx, func(cells []Cell) ([]Cell, error) {
		c, err := removable(cells, name)
		if err != nil {
			return nil, err
		}
		c.State, c.Placed = Gone, 0
		changed := []Cell{c}
		if !slices.ContainsFunc(cells, func(o Cell) bool { return o.Name != name && o.Placed > 0 }) {
			for _, o := range cells { // nothing is anywhere else yet
				if o.Target() > 0 && o.Name != name {
					o.Placed = o.Weight
					changed = append(changed, o)
				}
			}
		}
		return changed, nil
	})
	if err != nil {
		return Cell{}, err
	}
	if err := d.forget(ctx, func(_ string, o override) bool { return o.cell == name }); err != nil {
		return Cell{}, err
	}
	c, _ := d.Cell(name)
	return c, nil
}

// Register stores where the reader of a cell is.
func (d *Directory) Register(ctx context.Context, name, reader string) error {
	return d.edit(ctx, func(cells []Cell) ([]Cell, error) {
		c, ok := find(cells, name)
		if !ok {
			return nil, fmt.Errorf("cell %s: %w", name, ErrNoCell)
		}
		if c.Reader == reader {
			return nil, errUnchanged
		}
		c.Reader = reader
		return []Cell{c}, nil
	})
}

// Override places a repository in a cell: until the weights do so, too, or, if pin is set, until the cell is drained.
// A pin in that cell stays. It can be repeated. It fails with [ErrChanged] if the repository is placed neither in that
// cell nor in from; "" permits any, for a repository that was renamed within the cell: the new path has been confirmed
// by the remote, so what had that path is no longer it.
func (d *Directory) Override(ctx context.Context, repo events.RepoPath, from, to string, pin bool) error {
	for range maxAttempts {
		if err := d.Refresh(ctx); err != nil {
			return err
		}
		d.mu.RLock()
		current, o := d.place(repo.Key()), d.overrides[repo.Key()]
		d.mu.RUnlock()
		if c, known := d.Cell(to); !known || c.State == Gone {
			return fmt.Errorf("cell %s: %w", to, ErrNoCell)
		}
		if from != "" && current != from && current != to {
			return fmt.Errorf("place %s in cell %s: it is in %s: %w", repo, to, current, ErrChanged)
		}
		value := override{to, pin || o == override{to, true}} // even if the weights say so: they may change meanwhile
		refused, err := d.change(ctx, []any{repo.Key(), o.String(), value.String()})
		if err != nil || !refused {
			return err
		}
	}
	return ErrChanged
}

// Settle sets Placed to Weight in all cells, when no repository is left to move, and removes the overrides
// that are not needed any more. Cells that were draining are gone. epoch is that of the copy by which the
// caller has established that none is left: Settle fails with [ErrChanged] if the directory has changed
// since. If it is interrupted, needless overrides remain until the next one.
func (d *Directory) Settle(ctx context.Context, epoch int64) error {
	if d.Epoch() != epoch {
		return ErrChanged
	}
	changed := []Cell{}
	for _, c := range d.Cells() {
		before := c
		c.Placed = c.Target()
		if c.State == Draining {
			c.State = Gone
		}
		if c.Placed != before.Placed || c.State != before.State {
			changed = append(changed, c)
		}
	}
	if len(changed) > 0 {
		ok, err := d.update(ctx, changed, epoch)
		if err != nil {
			return err
		}
		if !ok {
			return ErrChanged
		}
	}
	return d.forget(ctx, func(key string, o override) bool { return !o.pinned && d.placed.Of(key) == o.cell })
}

// edit changes cells. fn is called with the cells of now, and again if they change meanwhile.
func (d *Directory) edit(ctx context.Context, fn func([]Cell) ([]Cell, error)) error {
	for range maxAttempts {
		if err := d.Refresh(ctx); err != nil {
			return err
		}
		changed, err := fn(d.Cells())
		if errors.Is(err, errUnchanged) {
			return nil
		}
		if err != nil {
			return err
		}
		if ok, err := d.update(ctx, changed, -1); err != nil || ok {
			return err
		}
	}
	return ErrChanged
}

// update stores cells, and refreshes the copy. It returns false if one has changed, or if the epoch, unless
// negative, has.
func (d *Directory) update(ctx context.Context, changed []Cell, epoch int64) (bool, error) {
	expected := ""
	if epoch >= 0 {
		expected = fmt.Sprint(epoch)
	}
	args := []any{expected, logEntries}
	for _, c := range changed {
		text, err := c.encode()
		if err != nil {
			return false, err
		}
		args = append(args, c.Name, c.text, text)
	}
	stored, err := updateScript.Run(ctx, d.redis, []string{cellsKey, epochKey, logKey}, args...).Int64()
	if err != nil {
		return false, fmt.Errorf("change the directory of cells: %w", err)
	}
	return stored > 0, d.Refresh(ctx)
}

// forget removes the overrides for which fn, which is called under the lock, returns true.
func (d *Directory) forget(ctx context.Context, fn func(string, override) bool) error {
	var triples []any
	d.mu.RLock()
	for key, o := range d.overrides {
		if fn(key, o) {
			triples = append(triples, key, o.String(), "")
		}
	}
	d.mu.RUnlock()
	for batch := range slices.Chunk(triples, 3*placeBatch) {
		if _, err := d.change(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// change runs place.lua, and refreshes the copy. It reports whether an override is another one than expected.
func (d *Directory) change(ctx context.Context, triples []any) (refused bool, err error) {
	keys := []string{placedKey, epochKey, logKey}
	n, err := placeScript.Run(ctx, d.redis, keys, append([]any{logEntries}, triples...)...).Int()
	if err != nil {
		return false, fmt.Errorf("change the directory of cells: %w", err)
	}
	return n > 0, d.Refresh(ctx)
}

// removable returns a cell, or an error if no other cell is active.
func removable(cells []Cell, name string) (Cell, error) {
	c, ok := find(cells, name)
	if !ok {
		return Cell{}, fmt.Errorf("cell %s: %w", name, ErrNoCell)
	}
	if !slices.ContainsFunc(cells, func(o Cell) bool { return o.Name != name && o.Target() > 0 }) {
		return Cell{}, fmt.Errorf("cell %s: no other cell is active; add one with lockstep cells add NAME", name)
	}
	return c, nil
}

func find(cells []Cell, name string) (Cell, bool) {
	i := slices.IndexFunc(cells, func(c Cell) bool { return c.Name == name })
	if i < 0 {
		return Cell{}, false
	}
	return cells[i], true
}
