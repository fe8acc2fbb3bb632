package feed

import (
	"context"
	"fmt"
	"strings"

	"lockstep/events"
)

// Newest has the newest results that an app may read of a repository, nil if there is none among those searched.
type Newest struct {
	Last   *events.Result
	Failed *events.Result // the last failure
}

const (
	newestSearched = 1000 // results, of all repositories
	newestAtOnce   = 100
)

// Newest searches the newest 1,000 results of this process' cell.
func (f *Feed) Newest(ctx context.Context, app string, repo events.RepoPath) (found Newest, err error) {
	own := f.cfg.Sources()[0]
	before := "+"
	for range newestSearched / newestAtOnce {
		page, err := f.cfg.Redis.XRevRangeN(ctx, own.Namespace.Results(), before, "-", newestAtOnce).Result()
		if err != nil {
			return Newest{}, fmt.Errorf("search results of %s: %w", repo, err)
		}
		for _, entry := range page {
			before = "(" + entry.ID
			payload, _ := entry.Values["payload"].(string)
			if !strings.Contains(strings.ToLower(payload), `"`+repo.Key()+`"`) { // saves decoding it
				continue
			}
			result, err := events.ParseResult([]byte(payload))
			if err != nil || !result.Repo.Equal(repo) && !result.To.Equal(repo) {
				continue
			}
			audiences, err := own.Audiences(ctx, []events.Result{result}, func(events.Result, error) {})
			if err != nil {
				return Newest{}, err
			}
			if !audiences[0].Has(app) {
				continue
			}
			if found.Last == nil {
				found.Last = &result
			}
			if result.Type == events.ResultFailed {
				found.Failed = &result
				return found, nil
			}
		}
		if len(page) < newestAtOnce {
			break
		}
	}
	return found, nil
}
