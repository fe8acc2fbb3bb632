package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

// Summary is a repository in a list.
type Summary struct {
	Repo   string    `json:"repo"`            // path as last reported
	Synced time.Time `json:"-"`               // when the last sync was settled; zero if none was
	Fence  uint64    `json:"fence,omitempty"` // of the last settled change, or 0
	// when the remote last answered a sync or a poll, by Redis' clock
	Answered time.Time `json:"answered,omitzero"`
	// stream entry of the removal that deleted the clone; "" if it was synced or watched since, or could not be synced
	Removed string    `json:"removed,omitempty"`
	Refused []string  `json:"refused,omitempty"`  // refs whose commit is refused: not verified, or rewritten
	Missing []string  `json:"missing,omitempty"`  // refs of [Repo.Missing]
	LeftOut []LeftOut `json:"left_out,omitempty"` // refs that watches select, but that are not kept
	// last failure of each scope, newest first; without those of more than 30 days ago
	Failing []Trouble `json:"failing,omitempty"`
	Circuit Circuit   `json:"-"`
}

// Page is a page of repositories, sorted by path.
type Page struct {
	Repos []Summary
	Next  uint64 // cursor of the next page; 0 on the last page
}

const (
	scanBatch = 1000 // keys per SCAN
	maxScans  = 100  // SCANs per page
)

// summaryFields are the fields that List reads of each repository.
var summaryFields = []string{"repo", "fence", "synced", "tombstone", refusedField, missingField, leftOutField,
	TroubleField, cellField, answeredField}

// List returns a page of about limit repositories whose path has the prefix, ignoring case. cursor is 0 for the first
// page. List scans at most 100,000 keys of Redis, so a page may be short or empty without being the last. Repositories
// that change between calls may appear on two pages or on none.
func (s *Store) List(ctx context.Context, prefix string, cursor uint64, limit int) (Page, error) {
	page, err := s.list(ctx, prefix, cursor, limit)
	if err != nil {
		return Page{}, fmt.Errorf("list repositories: %w", err)
	}
	slices.SortFunc(page.Repos, func(a, b Summary) int {
		return cmp.Compare(strings.ToLower(a.Repo), strings.ToLower(b.Repo))
	})
	page.Repos = slices.CompactFunc(page.Repos, func(a, b Summary) bool { return strings.EqualFold(a.Repo, b.Repo) })
	return page, nil
}

func (s *Store) list(ctx context.Context, prefix string, cursor uint64, limit int) (Page, error) {
	base := string(s.namespace) + "repo:"
	node := s.redis
	if cluster, ok := node.(*redis.ClusterClient); ok {
		master, err := cluster.MasterForKey(ctx, base) // all keys have the same hash tag
		if err != nil {
			return Page{}, err
		}
		node = master
	}
	now, err := node.Time(ctx).Result()
	if err != nil {
		return Page{}, err
	}
	escape := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
	pattern, batch := escape.Replace(base+strings.ToLower(prefix))+"*", int64(min(max(limit, 10), scanBatch))
	page := Page{Next: cursor}
	for range maxScans {
		keys, next, err := node.Scan(ctx, page.Next, pattern, batch).Result()
		if err != nil {
			return Page{}, err
		}
		found, err := s.summaries(ctx, base, keys, now)
		if err != nil {
			return Page{}, err
		}
		page.Repos, page.Next = append(page.Repos, found...), next
		if len(keys) < limit/8 { // few keys match: scan more at once
			batch = min(2*batch, scanBatch)
		}
		if next == 0 || len(page.Repos) >= limit {
			break
		}
	}
	return page, nil
}

func (s *Store) summaries(ctx context.Context, base string, keys []string, now time.Time) ([]Summary, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	replies := make([]*redis.SliceCmd, len(keys))
	_, _ = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range keys {
			replies[i] = pipe.HMGet(ctx, key, summaryFields...)
		}
		return nil // each reply has its own error
	})
	found := map[string]*Repo{} // by key of the repository
	for i, key := range keys {
		values, err := replies[i].Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // skip keys that are not hashes
			return nil, err
		}
		known := Repo{fields: map[string]string{}}
		for n, value := range values {
			if text, ok := value.(string); ok {
				known.fields[summaryFields[n]] = text
			}
		}
		if known.IsZero() || !known.IsHere() {
			continue
		}
		found[strings.TrimPrefix(key, base)] = &known
	}
	if err := s.addWatched(ctx, found); err != nil {
		return nil, err
	}
	var list []Summary
	for key, known := range found {
		summary := known.Summary(now)
		summary.Repo = cmp.Or(summary.Repo, key)
		list = append(list, summary)
	}
	return list, nil
}

// addWatched notes which of the removed repositories are watched again.
func (s *Store) addWatched(ctx context.Context, repos map[string]*Repo) error {
	replies := map[string]*redis.IntCmd{}
	_, err := s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for key, known := range repos {
			if known.removal() != "" {
				replies[key] = pipe.Exists(ctx, s.watchesOf(key))
			}
		}
		return nil
	})
	for key, reply := range replies {
		repos[key].watched = reply.Val() > 0
	}
	return err
}

// removal returns the stream entry of the removal that deleted the clone, or "" if it was synced since, or
// could not be. A removal clears failures, so later ones are of a repository that is watched again.
func (r Repo) removal() string {
	tombstone := r.fields["tombstone"]
	if tombstone == "" || !r.Synced().IsZero() {
		return ""
	}
	if failures, _ := r.Failing(); len(failures) > 0 {
		return ""
	}
	return tombstone
}

// IsZero reports whether the repository has no state.
func (r Repo) IsZero() bool { return len(r.fields) == 0 }

// Summary returns the repository's summary at a time of Redis' clock.
func (r Repo) Summary(now time.Time) Summary {
	summary := Summary{Fence: r.Fence(), Synced: r.Synced(), Answered: r.Answered(), Circuit: r.CircuitAt(now)}
	summary.Failing, summary.Repo = r.Failing()
	summary.Failing = slices.DeleteFunc(summary.Failing, func(t Trouble) bool { return now.Sub(t.At) > maxTroubleAge })
	summary.Refused, summary.Missing = strings.Fields(r.fields[refusedField]), strings.Fields(r.fields[missingField])
	summary.LeftOut = r.LeftOut()
	if !r.watched {
		summary.Removed = r.removal()
	}
	return summary
}

// Remote returns the remote of the last sync, or "".
func (r Repo) Remote() string { return r.fields["url"] }

// Given is the commit of a ref last delivered to an app.
type Given struct {
	App    string `json:"app"` // empty for changes requested without an app
	Ref    string `json:"ref"`
	Commit string `json:"commit"`
}

// AllGiven returns the commits last delivered to all apps, sorted by app and ref.
func (r Repo) AllGiven() []Given {
	all := []Given{}
	for field, value := range r.fields {
		if rest, ok := strings.CutPrefix(field, givenPrefix); ok {
			ref, app, _ := strings.Cut(rest, ":")
			all = append(all, Given{app, ref, parseDelivery(value).commit})
		}
	}
	slices.SortFunc(all, func(a, b Given) int { return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Ref, b.Ref)) })
	return all
}

// LoadAt is like Load, but also returns the time by Redis' clock.
func (s *Store) LoadAt(ctx context.Context, repo events.RepoPath) (Repo, time.Time, error) {
	now, err := stream.Time(ctx, s.redis, s.namespace.Repo(repo))
	if err != nil {
		return Repo{}, time.Time{}, err
	}
	known, err := s.Load(ctx, repo)
	if err != nil {
		return Repo{}, time.Time{}, err
	}
	err = s.addWatched(ctx, map[string]*Repo{repo.Key(): &known})
	return known, now, err
}

// Polls returns the interval in which a repository is polled, 0 if that is unknown, and when the next poll is due by Redis'
// clock, zero if none is.
func (s *Store) Polls(ctx context.Context, repo events.RepoPath) (every time.Duration, next time.Time, err error) {
	pipe := s.redis.Pipeline()
	due := pipe.ZScore(ctx, s.namespace.Poll(), repo.Key())
	interval := pipe.HGet(ctx, s.watchesOf(repo.Key()), "every")
	_, _ = pipe.Exec(ctx)
	for _, err := range []error{due.Err(), interval.Err()} {
		if err != nil && !errors.Is(err, redis.Nil) {
			return 0, next, fmt.Errorf("read the polls of %s: %w", repo, err)
		}
	}
	if due.Err() == nil {
		next = time.UnixMilli(int64(due.Val())).UTC()
	}
	ms, _ := interval.Int64() // 0 if there is none
	return time.Duration(ms) * time.Millisecond, next, nil
}
