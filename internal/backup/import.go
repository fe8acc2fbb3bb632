package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// Table prints what was not changed and why, and the numbers.
func (s Summary) Table(w io.Writer) {
	for _, one := range s.Kept {
		fmt.Fprintf(w, "kept\t%s\n", one)
	}
	for _, one := range s.Conflicts {
		fmt.Fprintf(w, "conflict\t%s\n", one)
	}
	if s.Cells > 0 {
		fmt.Fprintf(w, "cells\t%d\n", s.Cells)
	}
	fmt.Fprintf(w, "added\t%d watches, %d states, %d tokens\nunchanged\t%d\n", s.Watches, s.States, s.Tokens, s.Unchanged)
}

// ErrCells means that a document of all cells is to be imported into one.
var ErrCells = errors.New("the document has the cells of a directory; import it with --cell all")

// Import adds the items of a document that Redis lacks. It is safe to repeat, also after it was killed. It
// adds nothing if it returns [ErrCells].
func Import(ctx context.Context, to Deployment, doc Document) (s Summary, err error) {
	directory, tokens := to.Cells.Directory(), access.NewTokens(to.Redis, to.Tokens)
	if directory == nil && len(doc.Cells) > 0 {
		return s, ErrCells
	}
	if err := to.hold(ctx, doc.Cells, 15*time.Minute); err != nil {
		return s, err
	}
	restored := directory != nil && len(to.Cells.Members()) == 0
	if restored {
		if err := directory.Restore(ctx, doc.Cells, doc.Epoch); err != nil {
			return s, err
		}
		s.Cells = len(doc.Cells)
	}
	if doc.TokensRequired {
		if err := tokens.Require(ctx); err != nil {
			return s, err
		}
	}
	for i, one := range doc.Repos {
		if to.Progress != nil {
			to.Progress(one.Repo, i, len(doc.Repos))
		}
		if err := s.add(ctx, to, one, restored); err != nil {
			return s, err
		}
	}
	for _, one := range doc.Tokens {
		added, err := tokens.Restore(ctx, one)
		if err != nil {
			return s, err
		}
		if added {
			s.Tokens++
		} else {
			s.Unchanged++
		}
	}
	return s, to.hold(ctx, doc.Cells, time.Millisecond)
}

// hold keeps workers from ending a plan of moves while the repositories that it is about are still missing.
func (d Deployment) hold(ctx context.Context, all []cells.Cell, period time.Duration) error {
	for _, c := range all {
		if err := d.Redis.Set(ctx, c.Prefix.Rebalance(), "import", period).Err(); err != nil {
			return err
		}
	}
	return nil
}

// add imports the watches of a repository and its state. If nobody watches it, the state comes first: as soon as it is
// watched, a worker may sync it, and would take its apps for new ones.
func (s *Summary) add(ctx context.Context, to Deployment, one Repository, restored bool) error {
	m, err := to.cellOf(ctx, one, restored)
	if err != nil {
		return err
	}
	registry := watch.NewRegistry(to.Redis, m.Namespace)
	watched, err := registry.AreWatched(ctx, []events.RepoPath{one.Repo})
	if err == nil && !watched[0] {
		err = s.addState(ctx, to, one, m)
	}
	if err != nil {
		return m.Explain(err)
	}
	watches, err := registry.Restore(ctx, one.Watches)
	if failed, ok := errors.AsType[*events.Error](err); ok { // not one of Redis
		s.Conflicts = append(s.Conflicts, fmt.Sprintf("%s: %v", one.Repo, failed))
		return nil
	}
	if err != nil {
		return m.Explain(err)
	}
	s.Watches += len(watches.Added)
	s.Unchanged += watches.Same
	for _, w := range watches.Kept {
		s.Kept = append(s.Kept, strings.TrimSpace(fmt.Sprint(w.Repo, " ", w.App, " ", w.Ref)))
	}
	if !watched[0] { // its state is there
		return nil
	}
	return s.addState(ctx, to, one, m)
}

// addState imports the state of a repository, unless it has one.
func (s *Summary) addState(ctx context.Context, to Deployment, one Repository, m cells.Member) error {
	if len(one.Watches) == 0 || one.Cell != "" && one.Cell != m.Name { // its state describes another volume
		return nil
	}
	added, err := state.NewStore(to.Redis, m.Namespace).Restore(ctx, one.Repo, one.State)
	if added {
		s.States++
	}
	return err
}

// cellOf returns the cell to import a repository into, and places it there: the one that has it. If none has
// it, that is the one where it was, unless it has moved away from there, or else the one where the directory
// places it.
func (d Deployment) cellOf(ctx context.Context, one Repository, restored bool) (cells.Member, error) {
	placed, err := d.Cells.Of(one.Repo)
	if err != nil || d.Cells.IsSingle() {
		return placed, err
	}
	to, known := placed, false
	for _, m := range d.Cells.Members() {
		watched, here, err := d.has(ctx, m, one.Repo)
		if err != nil {
			return to, m.Explain(err)
		}
		if here && !known && (watched || m.Name == one.Cell) {
			to, known = m, watched
		}
	}
	switch {
	case known && !restored:
	case one.Pinned && to.Name == one.Cell:
		err = d.Cells.Directory().Override(ctx, one.Repo, "", to.Name, true)
	case to != placed:
		err = d.Cells.Directory().Override(ctx, one.Repo, placed.Name, to.Name, false)
	}
	return to, err
}

// has reports whether a cell has watches of a repository, and whether its state does not say that the
// repository is elsewhere.
func (d Deployment) has(ctx context.Context, m cells.Member, repo events.RepoPath) (watched, here bool, err error) {
	found, err := watch.NewRegistry(d.Redis, m.Namespace).AreWatched(ctx, []events.RepoPath{repo})
	if err != nil {
		return false, false, err
	}
	known, err := state.NewStore(d.Redis, m.Namespace).Load(ctx, repo)
	return found[0], known.IsHere(), err
}
