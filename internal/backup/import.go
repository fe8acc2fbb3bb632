package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Summary is what an import has done.
type Summary struct {
	Cells     int      `json:"cells_added,omitempty"`
	Watches   int      `json:"watches_added"`
	States    int      `json:"states_added"`
	Tokens    int      `json:"tokens_added"`
	Unchanged int      `json:"unchanged"`           // watches and tokens
	Kept      []string `json:"kept,omitempty"`      // watches that Redis has, with other options
	Conflicts []string `json:"conflicts,omitempty"` // repositories that conflict with watches that Redis has
}

// ErrCells means that a document of all cells is to be imported into one.
var ErrCells = errors.New("the document has the cells of a directory; import it with --cell all")

type importer struct {
	Deployment
	restored bool // the directory
	summary  Summary
}

// Import adds the items of a document that Redis lacks. It is safe to repeat, also after it was killed. It adds nothing if it returns
// [ErrCells].
func Import(ctx context.Context, to Deployment, doc Document) (Summary, error) {
	i := &importer{Deployment: to}
	err := i.run(ctx, doc)
	return i.summary, err
}

func (i *importer) run(ctx context.Context, doc Document) error {
	directory, tokens := i.Cells.Directory(), access.NewTokens(i.Redis, i.Tokens)
	if directory == nil && len(doc.Cells) > 0 {
		return ErrCells
	}
	release, err := i.hold(ctx, doc.Cells)
	if err != nil {
		return err
	}
	if directory != nil && len(i.Cells.Members()) == 0 {
		if err := directory.Restore(ctx, doc.Cells, doc.Epoch); err != nil {
			return err
		}
		i.restored, i.summary.Cells = true, len(doc.Cells)
	}
	if doc.TokensRequired {
		if err := tokens.Require(ctx); err != nil {
			return err
		}
	}
	for _, one := range doc.Repos {
		if err := i.repository(ctx, one); err != nil {
			return err
		}
	}
	for _, one := range doc.Tokens {
		added, err := tokens.Restore(ctx, one)
		if err != nil {
			return err
		}
		if added {
			i.summary.Tokens++
		} else {
			i.summary.Unchanged++
		}
	}
	return release()
}

// hold keeps workers from ending a plan of moves while the repositories that it is about are still missing, until release or, if the import is
// interrupted, for some minutes.
func (i *importer) hold(ctx context.Context, all []cells.Cell) (release func() error, err error) {
	const long = 15 * time.Minute
	var keys []string
	for _, c := range all {
		key := c.Prefix.Rebalance()
		if err := i.Redis.Set(ctx, key, "import", long).Err(); err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return func() error {
		for _, key := range keys { // in a cluster, each is in a slot of its own
			if err := i.Redis.Del(ctx, key).Err(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// repository imports the watches of a repository, then its state.
func (i *importer) repository(ctx context.Context, one Repository) error {
	to, err := i.cellOf(ctx, one)
	if err != nil {
		return err
	}
	restored, err := watch.NewRegistry(i.Redis, to.Namespace).Restore(ctx, one.Watches)
	if failed, ok := errors.AsType[*events.Error](err); ok { // not one of Redis
		i.summary.Conflicts = append(i.summary.Conflicts, fmt.Sprintf("%s: %v", one.Repo, failed))
		return nil
	}
	if err != nil {
		return to.Explain(err)
	}
	i.summary.Watches += len(restored.Added)
	i.summary.Unchanged += restored.Same
	for _, w := range restored.Kept {
		i.summary.Kept = append(i.summary.Kept, strings.TrimSpace(fmt.Sprint(w.Repo, " ", w.App, " ", w.Ref)))
	}
	if one.Cell != "" && one.Cell != to.Name { // its state describes another volume
		return nil
	}
	added, err := state.NewStore(i.Redis, to.Namespace).Restore(ctx, one.Repo, one.State)
	if added {
		i.summary.States++
	}
	return err
}

// cellOf returns the cell to import a repository into, and places it there: the one that has it. If none has it, that is the one where it
// was, unless it has moved away from there, or else the one where the directory places it.
func (i *importer) cellOf(ctx context.Context, one Repository) (cells.Member, error) {
	placed, err := i.Cells.Of(one.Repo)
	if err != nil || i.Cells.IsSingle() {
		return placed, err
	}
	to, known := placed, false
	for _, m := range i.Cells.Members() {
		watched, here, err := i.has(ctx, m, one.Repo)
		if err != nil {
			return to, m.Explain(err)
		}
		if here && !known && (watched || m.Name == one.Cell) {
			to, known = m, watched
		}
	}
	switch {
	case known && !i.restored:
	case one.Pinned && to.Name == one.Cell:
		_, err = i.Cells.Directory().Adopt(ctx, one.Repo, to.Name)
	case to != placed:
		_, err = i.Cells.Directory().Flip(ctx, one.Repo, placed.Name, to.Name)
	}
	return to, err
}

// has reports whether a cell has watches of a repository, and whether its state does not say that the repository is elsewhere.
func (i *importer) has(ctx context.Context, m cells.Member, repo events.RepoPath) (watched, here bool, err error) {
	found, err := watch.NewRegistry(i.Redis, m.Namespace).AreWatched(ctx, []events.RepoPath{repo})
	if err != nil {
		return false, false, err
	}
	known, err := state.NewStore(i.Redis, m.Namespace).Load(ctx, repo)
	return found[0], known.IsHere(), err
}
