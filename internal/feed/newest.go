package feed

import (
	"cmp"
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/changes"
)

// Newest has the newest results that an app may read of a repository, nil if there is none among those searched.
type Newest struct {
	Last   *events.Result
	Failed *events.Result // the last failure
}

const newestSearched = 1000 // results, of all repositories

// Newest searches the newest 1,000 results of this process' cell.
func (f *Feed) Newest(ctx context.Context, app string, repo events.RepoPath) (found Newest, err error) {
	own, searched := f.cfg.Sources()[0], 0
	for e, err := range f.cfg.Reader.Backward(ctx, own.Namespace.Results(), "+", "-") {
		if err != nil {
			return Newest{}, fmt.Errorf("search results of %s: %w", repo, err)
		}
		if result, ok := changes.ResultOf(e, repo); ok {
			audiences, err := own.Audiences(ctx, []events.Result{result}, func(events.Result, error) {})
			if err != nil {
				return Newest{}, err
			}
			if audiences[0].Has(app) {
				found.Last = cmp.Or(found.Last, &result)
				if result.Type == events.ResultFailed {
					found.Failed = &result
					return found, nil
				}
			}
		}
		if searched++; searched == newestSearched {
			break
		}
	}
	return found, nil
}
