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
	ID      string `json:"id,omitempty"`  // of a token
	Error   string `json:"error,omitempty"`
}

// Summary has the numbers of watches, states and tokens by outcome.
type Summary struct {
	Repos     int  `json:"repos"` // in the document
	Watches   int  `json:"watches_added"`
	States    int  `json:"states_added"`
	Tokens    int  `json:"tokens_added"`
	Unchanged int  `json:"unchanged"`
	Kept      int  `json:"kept"`
	Conflicts int  `json:"conflicts"` // repositories
	DryRun    bool `json:"dry_run,omitempty"`
}

// ErrOtherVolume means that a document describes another volume than that of the deployment.
var ErrOtherVolume = errors.New("it has the state of a volume other than that of Redis; import with --no-state, or with the Redis of that volume")

const importAtOnce = 64 // repositories read at a time; eight of them are written at a time

type importer struct {
	cfg      ImportConfig
	registry *watch.Registry
	states   *state.Store
	tokens   *access.Tokens
	summary  Summary
}

// Import adds the items of a document that Redis lacks. [Check] must have accepted the document. It is safe to repeat, also after it was killed. It returns
// [ErrOtherVolume] before it adds anything. tokens is as in [Export].
func Import(ctx context.Context, client redis.UniversalClient, namespace, tokens events.Namespace, in io.Reader, cfg ImportConfig) (Summary, error) {
	i := &importer{
		cfg: cfg, registry: watch.NewRegistry(client, namespace), states: state.NewStore(client, namespace),
		tokens: access.NewTokens(client, tokens), summary: Summary{DryRun: cfg.DryRun},
	}
	r, err := newReader(in)
	if err != nil {
		return i.summary, err
	}
	if err := i.bind(ctx, client, namespace.Volume(), r.header.Volume); err != nil {
		return i.summary, err
	}
	return i.summary, i.all(ctx, r)
}

// bind binds an unbound deployment to the volume that the states describe, so that they are not used with another one.
func (i *importer) bind(ctx context.Context, client redis.UniversalClient, key, volume string) error {
	if i.cfg.NoState || volume == "" {
		return nil
	}
	if !i.cfg.DryRun {
		if err := client.SetNX(ctx, key, volume, 0).Err(); err != nil {
			return fmt.Errorf("set the volume's ID: %w", err)
		}
	}
	bound, err := client.Get(ctx, key).Result()
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

func (i *importer) all(ctx context.Context, r *reader) error {
	var some []value
	for {
		v, err := r.next()
		if ended := errors.Is(err, io.EOF); err != nil && !ended {
			return err
		}
		if v.repo != nil {
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
	restored, err := i.registry.Restore(ctx, watches, i.cfg.DryRun)
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
	if i.cfg.NoState || len(one.State) == 0 {
		return done, nil
	}
	if len(watches) == 0 {
		state.Unwatched(one.State)
	}
	outcome, err := i.states.Restore(ctx, one.Repo, one.State, one.Views, i.cfg.DryRun)
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
