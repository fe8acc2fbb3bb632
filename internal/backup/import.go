package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// ImportConfig says what to import.
type ImportConfig struct {
	DryRun   bool // only find out what would be imported
	NoState  bool // import no states: those of other repositories, or of another volume
	NoTokens bool // import no tokens

	// Report is called for each item that was added, that is left as it is in Redis, or that conflicts, in the order of the document.
	// Optional. Import returns its error.
	Report func(Item) error
}

// What an item is.
const (
	ItemCell  = "cell"
	ItemWatch = "watch"
	ItemState = "state"
	ItemToken = "token"
)

// Outcomes of an item.
const (
	Added    = "added"
	Kept     = "kept"     // Redis has another one, which stays
	Conflict = "conflict" // the watches of a repository cannot be added, and neither is its state
)

// Item is a part of a document and its outcome.
type Item struct {
	Outcome string `json:"outcome"`
	What    string `json:"what"`
	Repo    string `json:"repo,omitempty"`
	App     string `json:"app,omitempty"`
	Ref     string `json:"ref,omitempty"` // of a watch; empty for the default branch
	ID      string `json:"id,omitempty"`  // of a token, or the name of a cell
	Error   string `json:"error,omitempty"`
}

// Summary has the numbers of cells, watches, states and tokens by outcome.
type Summary struct {
	Repos     int  `json:"repos"` // in the document
	Cells     int  `json:"cells_added,omitempty"`
	Watches   int  `json:"watches_added"`
	States    int  `json:"states_added"`
	Tokens    int  `json:"tokens_added"`
	Unchanged int  `json:"unchanged"`
	Kept      int  `json:"kept"`
	Conflicts int  `json:"conflicts"` // repositories
	DryRun    bool `json:"dry_run,omitempty"`
}

// Errors of an import that has not added anything.
var (
	// ErrOtherVolume means that a document describes another volume than that of the deployment.
	ErrOtherVolume = errors.New("it has the state of a volume other than that of Redis; import with --no-state, or with the Redis of that volume")
	// ErrCells means that a document is of cells and the deployment is not, or the other way round.
	ErrCells = errors.New("cells")
)

const importAtOnce = 64 // repositories read at a time; eight of them are written at a time

type importer struct {
	cfg     ImportConfig
	to      Deployment
	only    string    // the cell whose repositories are imported; "" for all
	targets []*target // by cell; one for a single deployment
	fresh   bool      // a dry run that would add the directory: repositories go where the document has them
	tokens  *access.Tokens
	summary Summary
}

// target is the cell, or the single deployment, that repositories are imported into.
type target struct {
	cells.Member
	registry *watch.Registry
	states   *state.Store
}

// Import adds the items of a document that Redis lacks. [Check] must have accepted the document. It is safe to repeat, also after it was killed. It returns
// [ErrOtherVolume] or [ErrCells] before it adds anything.
//
// A document of cells restores the directory if that has no cells, with all weights and places of repositories. Otherwise each repository
// is imported into the cell where the directory has it. One that no cell knows is placed in its cell of the document. Its state is imported only into that cell, because
// it describes that one's volume. Into one cell of several, only the repositories of that cell are imported.
func Import(ctx context.Context, to Deployment, in io.Reader, cfg ImportConfig) (Summary, error) {
	i := &importer{cfg: cfg, to: to, tokens: access.NewTokens(to.Redis, to.Tokens), summary: Summary{DryRun: cfg.DryRun}}
	r, err := newReader(in)
	if err != nil {
		return i.summary, err
	}
	if err := i.prepare(ctx, r.header); err != nil {
		return i.summary, err
	}
	return i.summary, i.all(ctx, r)
}

// prepare finds the targets, binds each to the volume that the document's states describe, and restores the directory if need be.
func (i *importer) prepare(ctx context.Context, h Header) error {
	directory, members := i.to.Cells.Directory(), i.to.Cells.Members()
	volumes := map[string]string{"": h.Volume}
	for _, c := range h.Cells {
		volumes[c.Name] = c.Volume
	}
	switch {
	case directory == nil && len(h.Cells) > 0:
		if i.only = members[0].Name; !h.has(i.only) {
			return fmt.Errorf("%w: the document has those of a directory; name it with --cells-prefix, or one of its cells with --cell", ErrCells)
		}
	case directory != nil && len(h.Cells) == 0:
		return fmt.Errorf("%w: the document is of one deployment; name the cell to import it into with --cell", ErrCells)
	case directory == nil:
		volumes[members[0].Name] = h.Volume
	case len(members) == 0:
		i.fresh = i.cfg.DryRun
		for _, c := range h.Cells {
			members = append(members, cells.Member{Name: c.Name, Namespace: c.Prefix})
		}
	}
	for _, m := range members {
		i.targets = append(i.targets, &target{m, watch.NewRegistry(i.to.Redis, m.Namespace), state.NewStore(i.to.Redis, m.Namespace)})
		if err := i.bind(ctx, m.Namespace.Volume(), volumes[m.Name]); err != nil {
			return inCell(m, err)
		}
	}
	if directory == nil || len(i.to.Cells.Members()) > 0 {
		return nil
	}
	if !i.cfg.DryRun {
		if err := directory.Restore(ctx, h.Cells); err != nil {
			return err
		}
	}
	for _, c := range h.Cells {
		if err := i.report(Item{Outcome: Added, What: ItemCell, ID: c.Name}); err != nil {
			return err
		}
	}
	return nil
}

// bind binds an unbound deployment to the volume that the states describe, so that they are not used with another one.
func (i *importer) bind(ctx context.Context, key, volume string) error {
	if i.cfg.NoState || volume == "" {
		return nil
	}
	if !i.cfg.DryRun {
		if err := i.to.Redis.SetNX(ctx, key, volume, 0).Err(); err != nil {
			return fmt.Errorf("set the volume's ID: %w", err)
		}
	}
	bound, err := i.to.Redis.Get(ctx, key).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil
	case err != nil:
		return fmt.Errorf("read the volume's ID: %w", err)
	case bound != volume:
		return fmt.Errorf("%w (it has %.40q, Redis %.40q)", ErrOtherVolume, volume, bound)
	}
	return nil
}

// place returns where to import a repository, and whether its state describes the volume there.
func (i *importer) place(ctx context.Context, one Repository) (to *target, withState bool, err error) {
	directory := i.to.Cells.Directory()
	if directory == nil || i.fresh {
		return i.target(cmp.Or(one.Cell, i.targets[0].Name)), true, nil
	}
	cell, err := i.to.Cells.Of(one.Repo)
	if err != nil {
		return nil, false, err
	}
	to = i.target(cell.Name)
	if to == nil {
		return nil, false, fmt.Errorf("import %s: %w", one.Repo, cells.ErrChanged)
	}
	if wanted := i.target(one.Cell); wanted != nil && wanted != to {
		known, err := to.knows(ctx, one.Repo)
		if err != nil || known {
			return to, false, err
		}
		if !i.cfg.DryRun {
			if _, err := directory.Flip(ctx, one.Repo, cell.Name, one.Cell); err != nil {
				return nil, false, err
			}
		}
		to = wanted
	}
	if one.Pinned && to.Name == one.Cell && !i.cfg.DryRun && !directory.PinnedTo(one.Repo, one.Cell) {
		if _, err := directory.Pin(ctx, one.Repo, one.Cell); err != nil {
			return nil, false, err
		}
	}
	return to, to.Name == one.Cell, nil
}

// target returns the target of a cell, or nil.
func (i *importer) target(cell string) *target {
	n := slices.IndexFunc(i.targets, func(t *target) bool { return t.Name == cell })
	if n < 0 {
		return nil
	}
	return i.targets[n]
}

// knows reports whether the cell has watches or state of a repository.
func (t *target) knows(ctx context.Context, repo events.RepoPath) (bool, error) {
	watched, err := t.registry.AreWatched(ctx, []events.RepoPath{repo})
	if err != nil || watched[0] {
		return true, err
	}
	states, _, err := t.states.Read(ctx, []events.RepoPath{repo})
	return err != nil || states[0].Exported() != nil, err
}

func (i *importer) all(ctx context.Context, r *reader) error {
	var some []value
	for {
		v, err := r.next()
		if ended := errors.Is(err, io.EOF); err != nil && !ended {
			return err
		}
		if v.repo != nil && (i.only == "" || v.repo.Cell == i.only) {
			some = append(some, v)
		}
		if len(some) == importAtOnce || v.repo == nil { // all repositories are imported before the first token
			if err := i.repositories(ctx, some); err != nil {
				return err
			}
			some = nil
		}
		if err != nil {
			return nil // the end
		}
		if v.token != nil && !i.cfg.NoTokens {
			if err := i.token(ctx, *v.token); err != nil {
				return err
			}
		}
	}
}

// imported is the outcome of one repository.
type imported struct {
	items     []Item
	unchanged int
}

func (i *importer) repositories(ctx context.Context, some []value) error {
	outcomes := make([]imported, len(some))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for n, v := range some {
		g.Go(func() (err error) {
			outcomes[n], err = i.repository(gctx, *v.repo, v.watches)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, outcome := range outcomes {
		i.summary.Repos++
		i.summary.Unchanged += outcome.unchanged
		for _, item := range outcome.items {
			if err := i.report(item); err != nil {
				return err
			}
		}
	}
	return nil
}

// repository imports the watches of a repository, then its state.
func (i *importer) repository(ctx context.Context, one Repository, watches []watch.Watch) (done imported, err error) {
	to, withState, err := i.place(ctx, one)
	if err != nil {
		return done, err
	}
	restored, err := to.registry.Restore(ctx, watches, i.cfg.DryRun)
	if failed, ok := errors.AsType[*events.Error](err); ok { // not one of Redis
		done.items = []Item{{Outcome: Conflict, What: ItemWatch, Repo: one.Repo.String(), Error: failed.Error()}}
		return done, nil
	}
	if err != nil {
		return done, err
	}
	done.unchanged = restored.Same
	for _, part := range []struct {
		outcome string
		watches []watch.Watch
	}{{Added, restored.Added}, {Kept, restored.Kept}} {
		for _, w := range part.watches {
			done.items = append(done.items, Item{Outcome: part.outcome, What: ItemWatch, Repo: w.Repo.String(), App: w.App, Ref: w.Ref.String()})
		}
	}
	if i.cfg.NoState || len(one.State) == 0 || !withState {
		return done, nil
	}
	if len(watches) == 0 {
		state.Unwatched(one.State)
	}
	outcome, err := to.states.Restore(ctx, one.Repo, one.State, one.Views, i.cfg.DryRun)
	item := Item{What: ItemState, Repo: one.Repo.String()}
	switch outcome {
	case state.Restored:
		item.Outcome = Added
	case state.Kept:
		item.Outcome = Kept
	default:
		done.unchanged++
		return done, err
	}
	done.items = append(done.items, item)
	return done, err
}

func (i *importer) token(ctx context.Context, one access.Hashed) error {
	added, err := i.tokens.Restore(ctx, one, i.cfg.DryRun)
	if err != nil {
		return err
	}
	if !added {
		i.summary.Unchanged++
		return nil
	}
	return i.report(Item{Outcome: Added, What: ItemToken, App: one.App, ID: one.ID()})
}

// report counts an item.
func (i *importer) report(item Item) error {
	switch {
	case item.Outcome == Conflict:
		i.summary.Conflicts++
	case item.Outcome == Kept:
		i.summary.Kept++
	case item.What == ItemCell:
		i.summary.Cells++
	case item.What == ItemWatch:
		i.summary.Watches++
	case item.What == ItemState:
		i.summary.States++
	default:
		i.summary.Tokens++
	}
	if i.cfg.Report == nil {
		return nil
	}
	return i.cfg.Report(item)
}
