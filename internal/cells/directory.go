package cells

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Errors of a directory.
var (
	ErrNoCells = errors.New("the directory has no cells; add one with lockstep cells add NAME")
	ErrNoCell  = errors.New("no such cell in the directory; list them with lockstep cells ls")
	ErrChanged = errors.New("the directory has changed meanwhile; try again")
)

const (
	logEntries = 10_000
	logPage    = 1000
	scanPage   = 1000

	cellsKey  = string(DefaultPrefix) + "cells"
	epochKey  = string(DefaultPrefix) + "cells:epoch"
	placedKey = string(DefaultPrefix) + "cells:placed"
	logKey    = string(DefaultPrefix) + "cells:log"
)

// Directory is a copy of the directory of cells, and changes the directory. Safe for concurrent use.
type Directory struct {
	redis redis.UniversalClient

	refreshing sync.Mutex // held while the copy is brought up to date
	mu         sync.RWMutex
	cells      []Cell // by name
	index      map[string]int
	epoch      int64
	placed     *Placement
	target     *Placement
	overrides  map[string]override
}

// override places one repository.
type override struct {
	cell   string
	pinned bool
}

const pinnedSuffix = " pinned"

func (o override) String() string {
	if o.pinned {
		return o.cell + pinnedSuffix
	}
	return o.cell
}

func overrideOf(value string) override {
	name, pinned := strings.CutSuffix(value, pinnedSuffix)
	return override{name, pinned}
}

// Open returns a copy of the directory, or [ErrNoCells] if it does not exist. It does not keep it up to date: see
// [Directory.Run].
func Open(ctx context.Context, client redis.UniversalClient) (*Directory, error) {
	d, err := OpenOrNew(ctx, client)
	if err != nil {
		return nil, err
	}
	if len(d.cells) == 0 {
		return nil, ErrNoCells
	}
	return d, nil
}

// OpenOrNew is [Open], but returns an empty directory if it does not exist, to which cells can be added.
func OpenOrNew(ctx context.Context, client redis.UniversalClient) (*Directory, error) {
	d := &Directory{redis: client}
	d.refreshing.Lock()
	defer d.refreshing.Unlock()
	if err := d.reload(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// Epoch returns the epoch of the copy.
func (d *Directory) Epoch() int64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.epoch
}

// Cells returns the cells of the directory by name, those that are gone included.
func (d *Directory) Cells() []Cell {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Clone(d.cells)
}

// Cell returns a cell by its name, or false.
func (d *Directory) Cell(name string) (Cell, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.cell(name)
}

func (d *Directory) cell(name string) (Cell, bool) {
	i, ok := d.index[name]
	if !ok {
		return Cell{}, false
	}
	return d.cells[i], true
}

// Place returns the cell of a repository. It returns the zero Cell if no cell has a weight.
func (d *Directory) Place(repo events.RepoPath) Cell {
	d.mu.RLock()
	defer d.mu.RUnlock()
	c, _ := d.cell(d.place(repo.Key()))
	return c
}

func (d *Directory) place(key string) string {
	if o, ok := d.overrides[key]; ok {
		return o.cell
	}
	return d.placed.Of(key)
}

// Target returns the cell where a repository shall be when the changes of weights are complete. A pinned
// repository stays until its cell is drained. Target returns the zero Cell if no cell is active.
func (d *Directory) Target(repo events.RepoPath) Cell {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if o, ok := d.overrides[repo.Key()]; ok && o.pinned {
		if c, ok := d.cell(o.cell); ok && c.Target() > 0 {
			return c
		}
	}
	c, _ := d.cell(d.target.Of(repo.Key()))
	return c
}

// PinnedTo reports whether a repository is pinned to a cell.
func (d *Directory) PinnedTo(repo events.RepoPath, cell string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.overrides[repo.Key()] == override{cell, true}
}

// Pending reports whether weights have changed and [Directory.Settle] has not been called since.
func (d *Directory) Pending() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.ContainsFunc(d.cells, func(c Cell) bool { return c.Placed != c.Target() })
}

// Run refreshes the copy every second until ctx ends. It returns nil then. The first error of a series is logged.
func (d *Directory) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := d.Refresh(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			log.WarnContext(ctx, "directory of cells not refreshed, using the last copy", "epoch", d.Epoch(), "error", err)
		}
		failing = err != nil
	}
}

// Refresh brings the copy up to date: with one round trip if nothing has changed. Concurrent calls wait for each other.
func (d *Directory) Refresh(ctx context.Context) error {
	d.refreshing.Lock()
	defer d.refreshing.Unlock()
	for {
		more, err := d.follow(ctx)
		if err != nil || !more {
			return err
		}
	}
}

// follow applies a page of the log. It reports whether there may be more.
func (d *Directory) follow(ctx context.Context) (more bool, err error) {
	d.mu.RLock()
	known := d.epoch
	d.mu.RUnlock()
	var epoch *redis.StringCmd
	var entries *redis.XMessageSliceCmd
	_, err = d.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		epoch = pipe.Get(ctx, epochKey)
		entries = pipe.XRangeN(ctx, logKey, strconv.FormatInt(known+1, 10), "+", logPage)
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("read the directory of cells: %w", err)
	}
	now, _ := epoch.Int64()
	switch page := entries.Val(); {
	case now == known:
		return false, nil
	case len(page) == 0 || page[0].ID != strconv.FormatInt(known+1, 10)+"-0" || now < known:
		// the log was trimmed, or Redis has lost data
		return false, d.reload(ctx)
	default:
		return len(page) == logPage, d.apply(ctx, page)
	}
}

// apply applies entries of the log in order.
func (d *Directory) apply(ctx context.Context, page []redis.XMessage) error {
	var cells []Cell
	if slices.ContainsFunc(page, func(e redis.XMessage) bool { return e.Values["cells"] != nil }) {
		var err error
		if cells, err = d.readCells(ctx); err != nil { // may be newer than the page, as the rest of the log will tell
			return err
		}
	}
	last, err := epochOf(page[len(page)-1].ID)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if cells != nil {
		d.setCells(cells)
	}
	for _, e := range page {
		places, _ := e.Values["places"].(string)
		for line := range strings.SplitSeq(places, "\n") {
			if key, value, ok := strings.Cut(line, " "); ok {
				d.setOverride(key, value)
			}
		}
	}
	d.epoch = last
	return nil
}

// reload reads the whole directory: first its epoch, so that what changes meanwhile is read again.
func (d *Directory) reload(ctx context.Context) error {
	epoch, err := d.redis.Get(ctx, epochKey).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("read the directory of cells: %w", err)
	}
	cells, err := d.readCells(ctx)
	if err != nil {
		return err
	}
	fresh := Directory{}
	fresh.setCells(cells)
	for cursor := uint64(0); ; {
		var pairs []string
		if pairs, cursor, err = d.redis.HScan(ctx, placedKey, cursor, "", scanPage).Result(); err != nil {
			return fmt.Errorf("read the directory of cells: %w", err)
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			fresh.setOverride(pairs[i], pairs[i+1])
		}
		if cursor == 0 {
			break
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cells, d.index, d.placed, d.target = fresh.cells, fresh.index, fresh.placed, fresh.target
	d.overrides, d.epoch = fresh.overrides, epoch
	return nil
}

func (d *Directory) readCells(ctx context.Context) ([]Cell, error) {
	records, err := d.redis.HGetAll(ctx, cellsKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read the directory of cells: %w", err)
	}
	cells := make([]Cell, 0, len(records))
	for name, text := range records {
		c, err := decode(name, text)
		if err != nil {
			return nil, err
		}
		cells = append(cells, c)
	}
	slices.SortFunc(cells, func(a, b Cell) int { return cmp.Compare(a.Name, b.Name) })
	return cells, nil
}

// setCells replaces the cells. The caller holds the lock.
func (d *Directory) setCells(cells []Cell) {
	placed, target := make([]Share, len(cells)), make([]Share, len(cells))
	d.cells, d.index = cells, make(map[string]int, len(cells))
	for i, c := range cells {
		d.index[c.Name] = i
		placed[i], target[i] = Share{c.Name, c.Placed}, Share{c.Name, c.Target()}
	}
	d.placed, d.target = NewPlacement(placed), NewPlacement(target)
}

// setOverride changes an override; "" deletes it. The caller holds the lock.
func (d *Directory) setOverride(key, value string) {
	if value == "" {
		delete(d.overrides, key)
		return
	}
	if d.overrides == nil {
		d.overrides = map[string]override{}
	}
	o := overrideOf(value)
	if i, ok := d.index[o.cell]; ok {
		o.cell = d.cells[i].Name // one string for all
	}
	d.overrides[strings.Clone(key)] = o
}

func epochOf(id string) (int64, error) {
	text, _, _ := strings.Cut(id, "-")
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("directory of cells: entry %.40q of its log has no epoch", id)
	}
	return epoch, nil
}
