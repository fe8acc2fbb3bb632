package app

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/operate"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

const planPage = 1000

// Repositories yields the repositories of a cell, each once, in no order: those that are watched, and those
// with a state unless they were removed. It reads Redis page by page, and yields its error at the end.
func Repositories(
	ctx context.Context, client redis.UniversalClient, cell cells.Member,
) iter.Seq2[events.RepoPath, error] {
	return func(yield func(events.RepoPath, error) bool) {
		watched := map[string]bool{}
		registry := watch.NewRegistry(client, cell.Namespace)
		for q := (watch.Query{Limit: planPage}); ; {
			page, err := registry.List(ctx, q)
			if err != nil {
				yield(events.RepoPath{}, err)
				return
			}
			for _, w := range page.Watches {
				if !watched[w.Repo.Key()] {
					watched[w.Repo.Key()] = true
					if !yield(w.Repo, nil) {
						return
					}
				}
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
		store := state.NewStore(client, cell.Namespace)
		for cursor := uint64(0); ; {
			page, err := store.List(ctx, "", cursor, planPage)
			if err != nil {
				yield(events.RepoPath{}, err)
				return
			}
			for _, summary := range page.Repos {
				repo, err := events.ParseRepoPath(summary.Repo)
				if err != nil || summary.Removed != "" || watched[repo.Key()] {
					continue
				}
				watched[repo.Key()] = true // a repository may be on two pages
				if !yield(repo, nil) {
					return
				}
			}
			if cursor = page.Next; cursor == 0 {
				return
			}
		}
	}
}

// CellMove is a number of repositories that are to be moved from one cell to another.
type CellMove struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Repos int    `json:"repositories"`
}

// CellPlan is what is left to move until the repositories are where the weights of the cells want them.
type CellPlan struct {
	Epoch int64      `json:"epoch"` // of the directory
	Repos int        `json:"repositories"`
	Moves []CellMove `json:"moves"` // by cells
	// up to 20 moves from each cell, which keep the weights from taking effect
	Failed []operate.FailedMove `json:"failed,omitempty"`
	// cells that do not answer; the plan does not have their repositories
	Missing []cells.Missing `json:"missing,omitempty"`
}

// Empty reports whether nothing is left to move, as far as all cells have answered.
func (p CellPlan) Empty() bool { return len(p.Moves) == 0 && len(p.Missing) == 0 }

// PlanCells finds what is left to move, by going through the repositories of all cells.
func PlanCells(
	ctx context.Context, client redis.UniversalClient, directory *cells.Directory,
) (CellPlan, error) {
	if err := directory.Refresh(ctx); err != nil {
		return CellPlan{}, err
	}
	plan := CellPlan{Epoch: directory.Epoch(), Moves: []CellMove{}}
	moves := map[CellMove]int{}
	answering, missing := cells.All(client, directory).Answering(ctx)
	plan.Missing = missing
	for _, cell := range answering {
		if directory.Pending() {
			left, err := operate.ReadMovesLeft(ctx, client, cell.Namespace)
			if err != nil {
				return plan, err
			}
			plan.Failed = append(plan.Failed, left.Failed...)
		}
		for repo, err := range Repositories(ctx, client, cell) {
			if err != nil {
				return plan, err
			}
			if directory.Place(repo).Name != cell.Name { // it has left, or is here by mistake
				continue
			}
			plan.Repos++
			if target := directory.Target(repo).Name; target != cell.Name && target != "" {
				moves[CellMove{From: cell.Name, To: target}]++
			}
		}
	}
	for m, repos := range moves {
		m.Repos = repos
		plan.Moves = append(plan.Moves, m)
	}
	slices.SortFunc(plan.Moves, func(a, b CellMove) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return plan, nil
}

// ReplaceWatches puts the watches of a lost cell into the cells where its repositories are placed now, which
// polls them at once, as the limits of their hosts permit. It returns how many watches there are. It can be
// repeated.
func ReplaceWatches(
	ctx context.Context, client redis.UniversalClient, directory *cells.Directory, lost cells.Member,
) (watches int, err error) {
	registry, set := watch.NewRegistry(client, lost.Namespace), cells.All(client, directory)
	for q := (watch.Query{Limit: planPage}); ; {
		page, err := registry.List(ctx, q)
		if err != nil {
			return watches, err
		}
		for _, w := range page.Watches {
			cell, err := set.Of(w.Repo)
			if err != nil {
				return watches, err
			}
			if _, err := watch.NewRegistry(client, cell.Namespace).Put(ctx, w); err != nil {
				return watches, err
			}
			watches++
		}
		if q.After = page.Next; q.After == "" {
			return watches, nil
		}
	}
}
