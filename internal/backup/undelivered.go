package backup

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/notify"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// undelivered has the results that apps have not received: those that a consumer group has not
// acknowledged, or that wait in an outbox. They are lost with Redis, so the exported state requests
// them again.
type undelivered struct {
	client    redis.UniversalClient
	namespace events.Namespace
	last      string // ID of the last entry read
	results   map[delivery]string
	repos     map[string]bool // repositories that apps do not know to be removed or moved, by key
}

// delivery identifies the results of a ref for an app.
type delivery struct{ repo, app, ref string }

// findUndelivered finds where to read from: after the results that all groups have acknowledged.
func findUndelivered(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) (*undelivered, error) {
	marks, err := stream.ReadWatermarks(ctx, client, namespace.Results())
	if err != nil {
		return nil, err
	}
	u := &undelivered{client: client, namespace: namespace, last: marks.Latest, results: map[delivery]string{}, repos: map[string]bool{}}
	if marks.Unsettled != "" {
		entries, err := client.XRangeN(ctx, namespace.Results(), marks.Unsettled, marks.Unsettled, 1).Result()
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		for _, entry := range entries {
			u.note(entry)
		}
		u.last = marks.Unsettled
	}
	return u, nil
}

// read reads the results up to the end of the stream.
func (u *undelivered) read(ctx context.Context) error {
	const atOnce = 200
	for {
		entries, err := u.client.XRangeN(ctx, u.namespace.Results(), "("+u.last, "+", atOnce).Result()
		if err != nil {
			return fmt.Errorf("read results: %w", err)
		}
		for _, entry := range entries {
			u.note(entry)
			u.last = entry.ID
		}
		if len(entries) < atOnce {
			return nil
		}
	}
}

func (u *undelivered) note(entry redis.XMessage) {
	payload, _ := entry.Values["payload"].(string)
	if result, err := events.ParseResult([]byte(payload)); err == nil {
		noteIn(u.results, u.repos, result)
	}
}

// noteIn records a result unless an earlier one of the same app and ref is recorded.
func noteIn(results map[delivery]string, repos map[string]bool, result events.Result) {
	switch result.Type {
	case events.ResultSynced, events.ResultView:
		of := delivery{result.Repo.Key(), result.App, result.Ref.String()}
		if _, ok := results[of]; !ok {
			results[of] = result.Before
		}
	case events.ResultMoved:
		repos[result.To.Key()] = true
	case events.ResultRemoved:
		repos[result.Repo.Key()] = repos[result.Repo.Key()] || result.Ref.IsZero()
	}
}

// apply makes the exported state of a repository repeat what apps have not received.
func (u *undelivered) apply(ctx context.Context, one watch.Stored, fields, views map[string]string) error {
	results, repos := u.results, u.repos
	posted := map[delivery]string{}
	removed := map[string]bool{}
	done := map[string]bool{}
	for _, w := range one.Watches {
		if w.NotifyURL == "" || done[w.App] {
			continue
		}
		done[w.App] = true
		err := notify.Undelivered(ctx, u.client, u.namespace, w.App, one.Repo, func(result events.Result) {
			noteIn(posted, removed, result)
		})
		if err != nil {
			return err
		}
	}
	key := one.Repo.Key()
	if repos[key] || removed[key] {
		state.RepeatAll(fields, views)
		return nil
	}
	for _, given := range state.RepoOf(fields).AllGiven() {
		ref, err := events.ParseRef(given.Ref)
		if err != nil {
			continue
		}
		of := delivery{key, given.App, given.Ref}
		for _, undelivered := range []map[delivery]string{results, posted} { // what waits to be posted is older
			if before, ok := undelivered[of]; ok {
				state.Repeat(fields, views, given.App, ref, before)
			}
		}
	}
	return nil
}
