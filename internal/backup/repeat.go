package backup

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/notify"
	"lockstep/internal/state"
)

// missed has the commits that apps had before the first result that they have not received. If an app does not know that a repository was
// removed or moved, it has an entry without app and ref.
type missed map[of]string

type of struct{ repo, app, ref string }

// unacknowledged returns what apps miss because a consumer group has not acknowledged results.
func unacknowledged(ctx context.Context, client redis.UniversalClient, results string) (missed, error) {
	const atOnce = 200
	m := missed{}
	marks, err := stream.ReadWatermarks(ctx, client, results)
	if err != nil || marks.Unsettled == "" {
		return m, err
	}
	for from := marks.Unsettled; ; {
		entries, err := client.XRangeN(ctx, results, from, "+", atOnce).Result()
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		for _, entry := range entries {
			payload, _ := entry.Values["payload"].(string)
			if result, err := events.ParseResult([]byte(payload)); err == nil {
				m.note(result)
			}
			from = "(" + entry.ID
		}
		if len(entries) < atOnce {
			return m, nil
		}
	}
}

// note adds a result, unless there is an earlier one.
func (m missed) note(r events.Result) {
	key, before := of{repo: r.Repo.Key()}, ""
	switch {
	case r.Type == events.ResultSynced, r.Type == events.ResultView:
		key, before = of{r.Repo.Key(), r.App, r.Ref.String()}, r.Before
	case r.Type == events.ResultMoved:
		key = of{repo: r.To.Key()}
	case r.Type != events.ResultRemoved || !r.Ref.IsZero():
		return
	}
	if _, ok := m[key]; !ok {
		m[key] = before
	}
}

// before returns the commit that an app had before what it has missed, or false if it has missed nothing.
func (m missed) before(repo events.RepoPath, given state.Given) (commit string, ok bool) {
	if _, replaced := m[of{repo: repo.Key()}]; replaced {
		return "", true
	}
	commit, ok = m[of{repo.Key(), given.App, given.Ref}]
	return commit, ok
}

// repeat makes the exported state of a repository request what apps have missed: m, and what waits to be posted.
func (m missed) repeat(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, r Repository) error {
	unposted, read := missed{}, map[string]bool{}
	for _, w := range r.Watches {
		if w.NotifyURL == "" || read[w.App] {
			continue
		}
		read[w.App] = true
		if err := notify.Undelivered(ctx, client, namespace, w.App, r.Repo, unposted.note); err != nil {
			return err
		}
	}
	for _, given := range state.RepoOf(r.State).AllGiven() {
		ref, err := events.ParseRef(given.Ref)
		if err != nil {
			continue
		}
		before, ok := unposted.before(r.Repo, given) // older than what is not acknowledged
		if !ok {
			before, ok = m.before(r.Repo, given)
		}
		if ok {
			state.Repeat(r.State, given.App, ref, before)
		}
	}
	return nil
}
