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
	return d.AddAfter(ctx, name, prefix, weight, func(context.Context, Cell) error { return nil })
}

// AddAfter is [Directory.Add] after a step that has to come first, for which fn is called with the cell;
// perhaps several times.
func (d *Directory) AddAfter(
	ctx context.Context, name string, prefix events.Namespace, weight int, fn func(context.Context, Cell) error,
) (Cell, error) {
	var added Cell
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
		added = c
		return []Cell{c}, fn(ctx, c)
	})
	if err != nil {
		return Cell{}, err
	}
	return d.named(added.Name)
}

// epochGap is added to the epoch of a directory that was lost, for the changes since it was exported.
const epochGap = 1_000_000

// Restore adds cells as they were in a directory that was lost, which had the epoch: entries that were
// forwarded have it, and wait for it. It fails with [ErrChanged] if the directory has cells.
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
	return d.named(name)
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
	return d.named(name)
}

// Register stores where the reader of a cell is, and the ID of its volume. Empty values leave the stored ones
// as they are.
func (d *Directory) Register(ctx context.Context, name, reader, volume string) error {
	return d.edit(ctx, func(cells []Cell) ([]Cell, error) {
		c, ok := find(cells, name)
		if !ok {
			return nil, fmt.Errorf("cell %s: %w", name, ErrNoCell)
		}
		before := c
		c.Reader, c.Volume = cmp.Or(reader, c.Reader), cmp.Or(volume, c.Volume)
		if c.Reader == before.Reader && c.Volume == before.Volume {
			return nil, errUnchanged
		}
		return []Cell{c}, nil
	})
}

// Flip places a repository that has been moved from one cell into another. It can be repeated. It returns the
// epoch of the change, and fails with [ErrChanged] if the repository is placed in neither cell.
func (d *Directory) Flip(ctx context.Context, repo events.RepoPath, from, to string) (epoch int64, err error) {
	return d.override(ctx, repo, func(current string, o override) (string, error) {
		switch {
		case current == to && o.pinned:
			return o.String(), nil
		case current != to && current != from:
			return "", fmt.Errorf("place %s in cell %s: it is in %s, not in %s: %w", repo, to, current, from, ErrChanged)
		}
		return to, nil // even if the weights say so: they may change meanwhile
	})
}

// Pin keeps a repository in the cell where it is until that is drained, whatever the weights. It can be
// repeated. It fails with [ErrChanged] if the repository is placed in another cell.
func (d *Directory) Pin(ctx context.Context, repo events.RepoPath, cell string) (epoch int64, err error) {
	return d.override(ctx, repo, func(current string, _ override) (string, error) {
		if current != cell {
			return "", fmt.Errorf("pin %s in cell %s: it is in %s: %w", repo, cell, current, ErrChanged)
		}
		return override{cell, true}.String(), nil
	})
}

// Adopt pins a repository to a cell, wherever it was placed before. It is for a repository that was renamed
// within the cell: the new path has been confirmed by the remote, so what had that path is no longer it. It
// can be repeated.
func (d *Directory) Adopt(ctx context.Context, repo events.RepoPath, cell string) (epoch int64, err error) {
	return d.override(ctx, repo, func(string, override) (string, error) { return override{cell, true}.String(), nil })
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

// override changes the override of a repository. fn is called with its cell and its override, under the lock,
// and returns the new override.
func (d *Directory) override(
	ctx context.Context, repo events.RepoPath, fn func(string, override) (string, error),
) (int64, error) {
	for range maxAttempts {
		if err := d.Refresh(ctx); err != nil {
			return 0, err
		}
		d.mu.RLock()
		o := d.overrides[repo.Key()]
		value, err := fn(d.place(repo.Key()), o)
		known := true
		if err == nil {
			_, known = d.index[overrideOf(value).cell]
		}
		d.mu.RUnlock()
		if !known {
			return 0, fmt.Errorf("cell %s: %w", overrideOf(value).cell, ErrNoCell)
		}
		if err != nil {
			return 0, err
		}
		epoch, refused, err := d.change(ctx, []any{repo.Key(), o.String(), value})
		if err != nil || len(refused) == 0 {
			return epoch, err
		}
	}
	return 0, ErrChanged
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
		if _, _, err := d.change(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// change runs place.lua, and refreshes the copy.
func (d *Directory) change(ctx context.Context, triples []any) (epoch int64, refused []int64, err error) {
	reply, err := placeScript.Run(ctx, d.redis, []string{placedKey, epochKey, logKey},
		append([]any{logEntries}, triples...)...).Int64Slice()
	if err != nil {
		return 0, nil, fmt.Errorf("change the directory of cells: %w", err)
	}
	if len(reply) == 0 {
		return 0, nil, errors.New("change the directory of cells: unexpected reply of a script")
	}
	return reply[0], reply[1:], d.Refresh(ctx)
}

func (d *Directory) named(name string) (Cell, error) {
	c, ok := d.Cell(name)
	if !ok {
		return Cell{}, fmt.Errorf("cell %s: %w", name, ErrNoCell)
	}
	return c, nil
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
