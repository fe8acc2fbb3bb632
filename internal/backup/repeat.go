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

// missed has the results that a consumer group has not acknowledged. That of a whole repository has no app and ref: apps do not know that
// it was removed or moved.
type missed map[of]bool

type of struct{ repo, app, ref string }

func readMissed(ctx context.Context, client redis.UniversalClient, results string) (missed, error) {
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
			if r, err := events.ParseResult([]byte(payload)); err == nil {
				m[of{r.Repo.Key(), r.App, r.Ref.String()}] = true
				m[of{repo: r.To.Key()}] = true
			}
			from = "(" + entry.ID
		}
		if len(entries) < atOnce {
			return m, nil
		}
	}
}

// repeat makes the exported state of a repository request the results again that apps have not received: those in m, and those that wait
// to be posted.
func (m missed) repeat(ctx context.Context, outboxes notify.Outboxes, r Repository) (err error) {
	waiting := map[string]bool{} // by app
	for _, w := range r.Watches {
		if w.NotifyURL == "" {
			continue
		}
		if waiting[w.App], err = outboxes.IsWaiting(ctx, w.App, r.Repo); err != nil {
			return err
		}
	}
	for _, given := range state.RepoOf(r.State).AllGiven() {
		key := r.Repo.Key()
		if waiting[given.App] || m[of{repo: key}] || m[of{key, given.App, given.Ref}] {
			state.Repeat(r.State, given)
		}
	}
	return nil
}
