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

// missed has the results that apps have not received: those that a consumer group has not acknowledged, or that wait in an outbox. They
// are lost with Redis, so the exported state requests them again.
type missed struct {
	client    redis.UniversalClient
	namespace events.Namespace
	from      string // of the results to read next
	before    before
}

// before has the commits that apps had before the first of these results. A repository of which they do not know that it was removed or
// moved has an entry without app and ref.
type before map[of]string

type of struct{ repo, app, ref string }

func findMissed(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) (*missed, error) {
	marks, err := stream.ReadWatermarks(ctx, client, namespace.Results())
	if err != nil {
		return nil, err
	}
	m := &missed{client: client, namespace: namespace, from: marks.Unsettled, before: before{}}
	if m.from == "" {
		m.from = "(" + marks.Latest
	}
	return m, nil
}

// read reads the results up to the end of the stream.
func (m *missed) read(ctx context.Context) error {
	const atOnce = 200
	for {
		entries, err := m.client.XRangeN(ctx, m.namespace.Results(), m.from, "+", atOnce).Result()
		if err != nil {
			return fmt.Errorf("read results: %w", err)
		}
		for _, entry := range entries {
			payload, _ := entry.Values["payload"].(string)
			if result, err := events.ParseResult([]byte(payload)); err == nil {
				m.before.note(result)
			}
			m.from = "(" + entry.ID
		}
		if len(entries) < atOnce {
			return nil
		}
	}
}

func (b before) note(r events.Result) {
	switch r.Type {
	case events.ResultSynced, events.ResultView:
		key := of{r.Repo.Key(), r.App, r.Ref.String()}
		if _, ok := b[key]; !ok {
			b[key] = r.Before
		}
	case events.ResultMoved:
		b[of{repo: r.To.Key()}] = ""
	case events.ResultRemoved:
		if r.Ref.IsZero() {
			b[of{repo: r.Repo.Key()}] = ""
		}
	}
}

// repeat makes the exported state of a repository request what apps have missed.
func (m *missed) repeat(ctx context.Context, one watch.Stored, fields map[string]string) error {
	posted, done := before{}, map[string]bool{}
	for _, w := range one.Watches {
		if w.NotifyURL == "" || done[w.App] {
			continue
		}
		done[w.App] = true
		if err := notify.Undelivered(ctx, m.client, m.namespace, w.App, one.Repo, posted.note); err != nil {
			return err
		}
	}
	for _, given := range state.RepoOf(fields).AllGiven() {
		ref, err := events.ParseRef(given.Ref)
		if err != nil {
			continue
		}
		for _, key := range []of{{repo: one.Repo.Key()}, {one.Repo.Key(), given.App, given.Ref}} {
			commit, ok := posted[key]
			if !ok { // what waits to be posted is older
				commit, ok = m.before[key]
			}
			if ok {
				state.Repeat(fields, given.App, ref, commit)
				break
			}
		}
	}
	return nil
}
