package backup

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/access"
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
	ErrCells = errors.New("the document and the deployment do not fit")
)

const importAtOnce = 64 // repositories read at a time; eight of them are written at a time

type importer struct {
	cfg     ImportConfig
	to      Deployment
	placer  *placer        // nil without cells
	last    map[string]int // records that replace earlier ones: see [replaced]
	single  *cell          // without cells
	tokens  *access.Tokens
	summary Summary
}

// Import adds the items of a document that Redis lacks. [Check] must have accepted the document. It is safe to repeat, also after it was killed. It returns
// [ErrOtherVolume] or [ErrCells] before it adds anything.
//
// A document of cells restores the directory if that has no cells. Then each repository that a cell has is placed there, and each one of the
// document that no cell has where it was. A state is imported only into its cell of the document, because it describes that one's volume,
// and only if that cell is bound to the volume or to none.
func Import(ctx context.Context, to Deployment, in io.ReadSeeker, cfg ImportConfig) (Summary, error) {
	i := &importer{cfg: cfg, to: to, tokens: access.NewTokens(to.Redis, to.Tokens), summary: Summary{DryRun: cfg.DryRun}}
	start, err := in.Seek(0, io.SeekCurrent)
	if err != nil {
		return i.summary, err
	}
	r, err := newReader(in)
	if err != nil {
		return i.summary, err
	}
	directory := to.Cells.Directory()
	switch {
	case directory == nil && len(r.header.Cells) > 0:
		return i.summary, fmt.Errorf("%w: the document has the cells of a directory; name that with --cells-prefix, without --cell", ErrCells)
	case directory != nil && len(r.header.Cells) == 0:
		return i.summary, fmt.Errorf("%w: the document is of one deployment; name the cell to import it into with --cell", ErrCells)
	case directory == nil:
		i.single = openCell(to.Redis, to.Cells.Members()[0])
		fits, err := i.bind(ctx, i.single.Namespace, r.header.Volume)
		if err == nil && !fits {
			err = ErrOtherVolume
		}
		if err != nil {
			return i.summary, err
		}
		return i.summary, i.all(ctx, r)
	}
	if _, err = in.Seek(start, io.SeekStart); err == nil {
		i.last, err = replaced(in)
	}
	if err == nil {
		_, err = in.Seek(start, io.SeekStart)
	}
	if err == nil {
		r, err = newReader(in)
	}
	if err != nil {
		return i.summary, err
	}
	i.placer = &placer{importer: i, directory: directory, header: r.header, fits: map[string]bool{}}
	if err = i.placer.prepare(ctx); err == nil {
		err = i.all(ctx, r)
	}
	i.placer.release(ctx, err == nil)
	return i.summary, err
}

// bind binds an unbound deployment to the volume that the states describe, so that they are not used with another one. fits is false if it is
// bound to another one.
func (i *importer) bind(ctx context.Context, namespace events.Namespace, volume string) (fits bool, err error) {
	if i.cfg.NoState || volume == "" {
		return true, nil
	}
	if !i.cfg.DryRun {
		if err := i.to.Redis.SetNX(ctx, namespace.Volume(), volume, 0).Err(); err != nil {
			return false, fmt.Errorf("set the volume's ID: %w", err)
		}
	}
	bound, err := i.to.Redis.Get(ctx, namespace.Volume()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("read the volume's ID: %w", err)
	}
	return bound == "" || bound == volume, nil
}

// place returns where to import a repository, and whether its state describes the volume there.
func (i *importer) place(ctx context.Context, one Repository) (to *cell, withState bool, err error) {
	if i.placer == nil {
		return i.single, true, nil
	}
	return i.placer.place(ctx, one)
}

func (i *importer) all(ctx context.Context, r *reader) error {
	if r.header.TokensRequired && !i.cfg.NoTokens && !i.cfg.DryRun {
		if err := i.tokens.Require(ctx); err != nil {
			return err
		}
	}
	var some []value
	keys := map[string]bool{} // of some
	for {
		v, err := r.next()
		if ended := errors.Is(err, io.EOF); err != nil && !ended {
			return err
		}
		if len(some) == importAtOnce || v.repo == nil || keys[v.repo.Repo.Key()] { // all repositories are imported before the first token
			if err := i.repositories(ctx, some); err != nil {
				return err
			}
			some = nil
			clear(keys)
		}
		if v.repo != nil && i.last[v.repo.Repo.Key()] <= r.number {
			some = append(some, v)
			keys[v.repo.Repo.Key()] = true
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
