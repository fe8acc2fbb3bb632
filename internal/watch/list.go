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

// Query chooses watches. The zero Query is the first hundred of all.
type Query struct {
	Prefix string // those of repositories whose paths begin so, in whatever case
	App    string // those of that app; "" for any
	After  string // go on behind the former page: its Next
	Limit  int    // how many at most, 1 to 1000; default 100
}

// Page is a part of what a [Query] chose, by repository, app and ref.
type Page struct {
	Watches []Watch
	Next    string // where to go on; "" when that was all
}

// ErrBadAfter means that a [Query.After] is no page's Next.
var ErrBadAfter = errors.New("after: want what the page before gave as next")

const (
	usualPage   = 100
	mostPage    = 1000
	reposAtOnce = 100
	reposLooked = 10_000 // for one page
)

// List returns watches. It looks at 10,000 repositories at most, so that a page may be short, or empty, and
// not be the last. A watch that is there throughout is on one page; one that comes or goes meanwhile may be.
func (r *Registry) List(ctx context.Context, q Query) (Page, error) {
	limit := cmp.Or(q.Limit, usualPage)
	if limit < 1 || limit > mostPage {
		return Page{}, fmt.Errorf("limit %d: want 1 to %d", q.Limit, mostPage)
	}
	var after position
	if q.After != "" {
		var err error
		if after, err = parsePosition(q.After); err != nil {
			return Page{}, err
		}
	}
	var page Page
	for looked := 0; looked < reposLooked; looked += reposAtOnce {
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
				if len(page.Watches) == limit { // there is another
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

// Repos are the repositories that are watched, in order, those whose watches cannot be read among them; or an error
// of Redis, and then no more. One that is watched throughout is among them.
func (r *Registry) Repos(ctx context.Context) iter.Seq2[events.RepoPath, error] {
	return func(yield func(events.RepoPath, error) bool) {
		for after := (position{}); ; {
			found, err := r.sets(ctx, "", after)
			if err != nil {
				yield(events.RepoPath{}, err)
				return
			}
			for _, kept := range found {
				after = position{kept.repo.Key(), lastField}
				repo, err := events.ParseRepoPath(kept.spelled)
				if err != nil {
					repo = kept.repo
				}
				if len(kept.docs) > 0 && !yield(repo, nil) {
					return
				}
			}
			if len(found) < reposAtOnce {
				return
			}
		}
	}
}

// position is where a watch stands in the list. Fields are in the order of apps, then refs, for no app's name
// has a byte as small as the space behind it.
type position struct{ repo, field string }

// lastField comes after all of a repository's.
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

// sets reads what is kept of the next repositories whose keys begin with prefix: of the one after too, unless
// all of it was seen.
func (r *Registry) sets(ctx context.Context, prefix string, after position) ([]contents, error) {
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
	found, err := r.loadAll(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("list watches: %w", err)
	}
	return found, nil
}
