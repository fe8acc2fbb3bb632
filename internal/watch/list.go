package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Query selects watches. The zero Query selects the first hundred.
type Query struct {
	Prefix string // of repository paths, case-insensitive
	App    string // "" for all
	After  string // Next of the previous page
	Limit  int    // 1 to 1000; default 100
}

// Page is one page of watches, ordered by repository, app and ref.
type Page struct {
	Watches []Watch `json:"watches"`
	Next    string  `json:"next,omitempty"` // [Query.After] of the next page; "" on the last one
	// name of a cell that does not answer, whose watches the list lacks; never set by Registry
	Missing string `json:"missing_cell,omitempty"`
}

// ErrBadAfter means that [Query.After] was not returned as [Page.Next].
var ErrBadAfter = errors.New("after: want the value of \"next\" in the previous page")

const (
	defaultPage     = 100
	maxPage         = 1000
	reposAtOnce     = 100
	maxReposScanned = 10_000 // for one page
)

// List returns one page of watches. It scans at most 10,000 repositories, so a page may be short or empty without
// being the last. Watches that are added or removed meanwhile may be missing.
func (r *Registry) List(ctx context.Context, q Query) (Page, error) {
	limit, after, err := q.bounds()
	if err != nil {
		return Page{}, err
	}
	page := Page{Watches: []Watch{}}
	for scanned := 0; scanned < maxReposScanned; scanned += reposAtOnce {
		found, err := r.sets(ctx, strings.ToLower(q.Prefix), after)
		if err != nil {
			return Page{}, err
		}
		for _, kept := range found {
			watches, err := kept.watches()
			if err != nil {
				return Page{}, err
			}
			for _, w := range watches {
				at := position{w.Repo.Key(), w.Key().field()}
				if q.App != "" && w.App != q.App || at.compare(after) <= 0 {
					continue
				}
				if len(page.Watches) == limit { // there are more
					last := page.Watches[limit-1]
					page.Next = position{last.Repo.Key(), last.Key().field()}.String()
					return page, nil
				}
				page.Watches = append(page.Watches, w)
			}
			after = position{kept.repo.Key(), lastField}
		}
		if len(found) < reposAtOnce {
			return page, nil
		}
	}
	page.Next = after.String()
	return page, nil
}

// bounds returns the limit of a page, and the position after which it starts.
func (q Query) bounds() (limit int, after position, err error) {
	if limit = cmp.Or(q.Limit, defaultPage); limit < 1 || limit > maxPage {
		return 0, position{}, fmt.Errorf("limit %d: want 1 to %d", q.Limit, maxPage)
	}
	if q.After != "" {
		after, err = parsePosition(q.After)
	}
	return limit, after, err
}

// Repos iterates over the watched repositories in order, including those with watches that cannot be decoded. It stops
// after yielding a Redis error. Repositories that are added or removed meanwhile may be missing.
func (r *Registry) Repos(ctx context.Context) iter.Seq2[events.RepoPath, error] {
	return func(yield func(events.RepoPath, error) bool) {
		for kept, err := range r.all(ctx) {
			if !yield(kept.path(), err) {
				return
			}
		}
	}
}

// all iterates over the contents of the watched repositories in order. It stops after yielding a Redis error.
func (r *Registry) all(ctx context.Context) iter.Seq2[contents, error] {
	return func(yield func(contents, error) bool) {
		for after := (position{}); ; {
			found, err := r.sets(ctx, "", after)
			if err != nil {
				yield(contents{}, err)
				return
			}
			for _, kept := range found {
				after = position{kept.repo.Key(), lastField}
				if len(kept.docs) > 0 && !yield(kept, nil) {
					return
				}
			}
			if len(found) < reposAtOnce {
				return
			}
		}
	}
}

// path returns the repository's path as first watched.
func (c contents) path() events.RepoPath {
	if repo, err := events.ParseRepoPath(c.spelled); err == nil {
		return repo
	}
	return c.repo
}

// position is the position of a watch in the list. Fields sort by app, then ref, because the space after the app is
// smaller than any character of an app name.
type position struct{ repo, field string }

// lastField sorts after all fields of a repository.
const lastField = "~"

func (p position) compare(q position) int {
	return cmp.Or(strings.Compare(p.repo, q.repo), strings.Compare(p.field, q.field))
}

func (p position) String() string { return p.repo + " " + p.field }

func parsePosition(text string) (position, error) {
	repo, field, ok := strings.Cut(text, " ")
	if _, err := events.ParseRepoPath(repo); err != nil || !ok || repo != strings.ToLower(repo) {
		return position{}, ErrBadAfter
	}
	return position{repo, field}, nil
}

// sets reads up to 100 repositories with the prefix, from after on, or after it if after.field is lastField.
func (r *Registry) sets(ctx context.Context, prefix string, after position) ([]contents, error) {
	keys, err := r.keys(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	found, err := r.loadAll(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("list watches: %w", err)
	}
	return found, nil
}

// keys reads the keys of the repositories that sets reads.
func (r *Registry) keys(ctx context.Context, prefix string, after position) ([]string, error) {
	from, to := "-", "+"
	if prefix != "" {
		from, to = "["+prefix, "("+prefix+"\xff"
	}
	switch {
	case after.repo < prefix:
	case after.field == lastField:
		from = "(" + after.repo
	case after.repo != "":
		from = "[" + after.repo
	}
	keys, err := r.redis.ZRangeByLex(ctx, r.index(), &redis.ZRangeBy{Min: from, Max: to, Count: reposAtOnce}).Result()
	if err != nil {
		return nil, fmt.Errorf("list watches: %w", err)
	}
	return keys, nil
}
