package watch

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// OfApp returns an app's watches of a repository, by ref. Redis looks for them, so that a repository that
// other apps watch costs hardly more time than one that does not exist.
func (r *Registry) OfApp(ctx context.Context, app string, repo events.RepoPath) ([]Watch, error) {
	if err := CheckApp(app); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for cursor := uint64(0); ; {
		fields, next, err := scanApp(ctx, r.redis, r.of(repo), cursor, app).Result()
		if err != nil {
			return nil, fmt.Errorf("read the watches of %s: %w", repo, err)
		}
		addFields(found, fields)
		if cursor = next; cursor == 0 {
			return contents{repo: repo, docs: found}.watches()
		}
	}
}

// scanApp scans the watches of a repository for those of an app.
func scanApp(ctx context.Context, client redis.Cmdable, key string, cursor uint64, app string) *redis.ScanCmd {
	// The name of an app has no character that is special in a pattern. The count is high enough for one call.
	return client.HScan(ctx, key, cursor, app+" *", 4*maxWatches)
}

func addFields(found map[string]string, fields []string) {
	for i := 0; i+1 < len(fields); i += 2 {
		found[fields[i]] = fields[i+1]
	}
}

// AppPage is one page of the repositories that an app watches, in order.
type AppPage struct {
	Repos []Stored // with the app's watches, never none
	Next  string   // [Query.After] of the next page; "" on the last one
}

// ReposOf returns one page of the repositories that the app of a query watches. Like [Registry.List], it
// scans at most 10,000 repositories. It skips watches that cannot be decoded.
func (r *Registry) ReposOf(ctx context.Context, q Query) (AppPage, error) {
	limit, after, err := q.bounds()
	if err != nil {
		return AppPage{}, err
	}
	if err := CheckApp(q.App); err != nil {
		return AppPage{}, err
	}
	var page AppPage
	for scanned := 0; scanned < maxReposScanned; scanned += reposAtOnce {
		keys, err := r.keys(ctx, strings.ToLower(q.Prefix), after)
		if err != nil {
			return AppPage{}, err
		}
		found, err := r.ofAppAll(ctx, q.App, keys)
		if err != nil {
			return AppPage{}, err
		}
		for _, one := range found {
			if len(page.Repos) == limit { // there are more
				page.Next = position{page.Repos[limit-1].Repo.Key(), lastField}.String()
				return page, nil
			}
			page.Repos = append(page.Repos, one)
		}
		if len(keys) < reposAtOnce {
			return page, nil
		}
		after = position{keys[len(keys)-1], lastField}
	}
	page.Next = after.String()
	return page, nil
}

// ofAppAll returns those of the repositories with these keys that an app watches.
func (r *Registry) ofAppAll(ctx context.Context, app string, keys []string) ([]Stored, error) {
	replies := make([]*redis.ScanCmd, len(keys))
	_, _ = r.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range keys {
			replies[i] = scanApp(ctx, pipe, r.ofPrefix()+key, 0, app)
		}
		return nil // each reply has its own error
	})
	var repos []Stored
	for i, key := range keys {
		fields, next, err := replies[i].Result()
		if err != nil {
			return nil, fmt.Errorf("read the watches of %s: %w", key, err)
		}
		repo, err := events.ParseRepoPath(key)
		if err != nil {
			return nil, fmt.Errorf("invalid repository %.100q in an index: %w", key, err)
		}
		if next != 0 {
			watches, err := r.OfApp(ctx, app, repo)
			if err != nil {
				return nil, err
			}
			if len(watches) > 0 {
				repos = append(repos, Stored{watches[0].Repo, watches})
			}
			continue
		}
		one := Stored{Repo: repo}
		for j := 1; j < len(fields); j += 2 {
			if w, err := parse([]byte(fields[j])); err == nil && w.Repo.Equal(repo) {
				one.Repo, one.Watches = w.Repo, append(one.Watches, w)
			}
		}
		if len(one.Watches) > 0 {
			slices.SortFunc(one.Watches, byAppAndRef)
			repos = append(repos, one)
		}
	}
	return repos, nil
}
