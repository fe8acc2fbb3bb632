package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Options say what to leave out.
type Options struct {
	NoState  bool // what apps were given: for another deployment
	NoTokens bool
}

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
	Options
	restored bool // the directory
	summary  Summary
}

// Import adds the items of a document that Redis lacks. It is safe to repeat, also after it was killed. It adds nothing if it returns
// [ErrCells] or an error of [Check].
func Import(ctx context.Context, to Deployment, document []byte, options Options) (Summary, error) {
	i := &importer{Deployment: to, Options: options}
	header, err := Check(document)
	if err != nil {
		return i.summary, err
	}
	directory, tokens := to.Cells.Directory(), access.NewTokens(to.Redis, to.Tokens)
	if directory == nil && len(header.Cells) > 0 {
		return i.summary, ErrCells
	}
	if directory != nil && len(to.Cells.Members()) == 0 {
		if err := directory.Restore(ctx, header.Cells, header.Epoch); err != nil {
			return i.summary, err
		}
		i.restored, i.summary.Cells = true, len(header.Cells)
	}
	if header.TokensRequired && !i.NoTokens {
		if err := tokens.Require(ctx); err != nil {
			return i.summary, err
		}
	}
	err = read(document, func(l line) error {
		if l.Hash == "" {
			return i.repository(ctx, l)
		}
		if i.NoTokens {
			return nil
		}
		added, err := tokens.Restore(ctx, l.Hashed)
		if added {
			i.summary.Tokens++
		} else if err == nil {
			i.summary.Unchanged++
		}
		return err
	})
	return i.summary, err
}

// repository imports the watches of a repository, then its state.
func (i *importer) repository(ctx context.Context, l line) error {
	to, err := i.cellOf(ctx, l.Repository)
	if err != nil {
		return err
	}
	restored, err := watch.NewRegistry(i.Redis, to.Namespace).Restore(ctx, l.Watches)
	if failed, ok := errors.AsType[*events.Error](err); ok { // not one of Redis
		i.summary.Conflicts = append(i.summary.Conflicts, fmt.Sprintf("%s: %v", l.Repo, failed))
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
	if i.NoState || l.Cell != "" && l.Cell != to.Name {
		return nil
	}
	added, err := state.NewStore(i.Redis, to.Namespace).Restore(ctx, l.Repo, l.State)
	if added {
		i.summary.States++
	}
	return err
}

// cellOf returns the cell to import a repository into: the one that has it. If none has it, that is the one where it was, unless it has
// moved away from there, or else the one where the directory places it.
func (i *importer) cellOf(ctx context.Context, one Repository) (cells.Member, error) {
	directory := i.Cells.Directory()
	if directory == nil {
		return i.Cells.Members()[0], nil
	}
	placed, err := i.Cells.Of(one.Repo)
	if err != nil {
		return placed, err
	}
	to, known := placed, false
	for _, m := range i.Cells.Members() {
		watched, here, err := i.look(ctx, m, one.Repo)
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
		_, err = directory.Adopt(ctx, one.Repo, to.Name)
	case to != placed:
		_, err = directory.Flip(ctx, one.Repo, placed.Name, to.Name)
	}
	return to, err
}

// look reports whether a cell has watches of a repository, and whether its state does not say that the repository is elsewhere.
func (i *importer) look(ctx context.Context, m cells.Member, repo events.RepoPath) (watched, here bool, err error) {
	found, err := watch.NewRegistry(i.Redis, m.Namespace).AreWatched(ctx, []events.RepoPath{repo})
	if err != nil {
		return false, false, err
	}
	known, err := state.NewStore(i.Redis, m.Namespace).Load(ctx, repo)
	return found[0], known.IsHere(), err
}
