package access

import (
	"context"
	"errors"
	"slices"

	"lockstep/events"
	"lockstep/internal/watch"
)

// Audience is the apps that may read a result, in order. The operator reads all results.
type Audience []string

// Has reports whether an app may read the result.
func (a Audience) Has(app string) bool {
	_, found := slices.BinarySearch(a, app)
	return found
}

// Audiences returns for each result the apps that may read it, according to the current watches: the results that
// apps are notified of (see [watch.Notable]), whether or not their watches have a URL, paths or views. Once the refusal
// of the credential of an app's watch is confirmed, the app reads only its failures and that the whole repository was
// removed.
//
// A result of a repository with watches that cannot be decoded has no audience, and failed is called with the
// error. Other errors are those of Redis.
func (r *Reader) Audiences(
	ctx context.Context, results []events.Result, failed func(events.Result, error),
) ([]Audience, error) {
	all := make([]Audience, len(results))
	sets := map[string][]watch.Watch{}
	for i, result := range results {
		if !watch.Notable(result) {
			continue
		}
		repo := watch.ConcernedRepo(result)
		watches, known := sets[repo.Key()]
		if !known {
			set, err := r.Watches.Of(ctx, repo)
			if _, invalid := errors.AsType[*events.Error](err); invalid { // must not hold up other repositories
				failed(result, err)
				err = nil
			}
			if err != nil {
				return nil, err
			}
			watches = set.Watches
			sets[repo.Key()] = watches
		}
		var err error
		if all[i], err = r.audience(ctx, result, watches); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// audience returns the apps of watches that may read a result.
func (r *Reader) audience(ctx context.Context, result events.Result, watches []watch.Watch) (Audience, error) {
	var apps Audience
	var pairs [][2]string
	for _, w := range watches {
		if (result.App == "" || result.App == w.App) && w.Ref.Rank(result) > 0 {
			apps, pairs = append(apps, w.App), append(pairs, [2]string{w.App, w.Credential})
		}
	}
	own := result.Type == events.ResultFailed || result.Type == events.ResultRemoved && watch.IsWhole(result)
	if !own && len(apps) > 0 {
		denied, err := r.States.DeniedOf(ctx, watch.ConcernedRepo(result), pairs)
		if err != nil {
			return nil, err
		}
		apps = nil
		for i, pair := range pairs {
			if !denied[i] {
				apps = append(apps, pair[0])
			}
		}
	}
	slices.Sort(apps)
	return slices.Compact(apps), nil
}
