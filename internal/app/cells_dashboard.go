package app

import (
	"cmp"
	"context"
	"slices"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/state"
)

// boardRepos are the repositories of all cells for the dashboard.
type boardRepos struct{ reposOfAll }

// ManyHeads leaves out those of cells that do not answer.
func (r boardRepos) ManyHeads(ctx context.Context, paths []string) ([]map[string]string, error) {
	heads, of := make([]map[string]string, len(paths)), map[cells.Member][]int{}
	for i, path := range paths {
		heads[i] = map[string]string{}
		repo, err := events.ParseRepoPath(path)
		if err != nil {
			continue
		}
		cell, err := r.set.Of(repo)
		if err != nil {
			return nil, err
		}
		of[cell] = append(of[cell], i)
	}
	var members []cells.Member
	for cell := range of {
		members = append(members, cell)
	}
	for _, a := range cells.Gather(ctx, members, cells.AnswerTimeout, func(
		ctx context.Context, cell cells.Member,
	) ([]map[string]string, error) {
		some := make([]string, len(of[cell]))
		for n, i := range of[cell] {
			some[n] = paths[i]
		}
		return state.NewStore(r.set.Redis(), cell.Namespace).ManyHeads(ctx, some)
	}) {
		if a.Err != nil {
			continue
		}
		for n, i := range of[a.Member] {
			heads[i] = a.Value[n]
		}
	}
	return heads, ctx.Err()
}

func (r boardRepos) Failing(ctx context.Context, limit int) (all state.FailingRepos, err error) {
	answers := cells.Gather(ctx, r.set.Members(), cells.AnswerTimeout, func(
		ctx context.Context, cell cells.Member,
	) (state.FailingRepos, error) {
		return state.NewStore(r.set.Redis(), cell.Namespace).Failing(ctx, limit)
	})
	for _, a := range answers {
		if a.Err != nil {
			all.Missing = append(all.Missing, a.Name)
			err = cmp.Or(err, a.Err)
			continue
		}
		all.Total, all.Repos = all.Total+a.Value.Total, append(all.Repos, a.Value.Repos...)
	}
	if len(all.Missing) == len(answers) {
		return state.FailingRepos{}, err
	}
	slices.SortStableFunc(all.Repos, func(a, b state.Summary) int { return b.Failing[0].At.Compare(a.Failing[0].At) })
	all.Repos = all.Repos[:min(limit, len(all.Repos))]
	return all, nil
}
