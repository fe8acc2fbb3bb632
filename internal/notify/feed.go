package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/redisx"
	"lockstep/internal/watch"
)

const (
	feedItems = 1_000 // a batch with this many items gets no further result
	feedPause = 500 * time.Millisecond
)

const nobody = "?" // app and repository of an entry put back that is no notification; it becomes a dead letter again

func (n *Notifier) feed(ctx context.Context) {
	last, down := "", false // the group's last delivered ID, "" if unknown
	for ctx.Err() == nil {
		err := n.feedNext(ctx, &last)
		n.report(ctx, &down, "results cannot be queued", err)
		if err != nil {
			redisx.Pause(ctx, feedPause)
		}
	}
}

// feedNext waits for entries and feeds them, unless another process already has.
func (n *Notifier) feedNext(ctx context.Context, last *string) error {
	if *last == "" {
		return n.position(ctx, last)
	}
	results, again := n.cfg.Namespace.Results(), n.cfg.Namespace.Notifications()
	read, err := n.reader.Next(ctx, map[string]string{results: *last, again: "0-0"})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	case len(read) == 0:
		return n.position(ctx, last)
	}
	b, err := n.batch(ctx, *last, read[results], read[again])
	if err != nil {
		return err
	}
	behind, lost, err := n.outbox.feed(ctx, b, n.cfg.limits)
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "NOGROUP"):
		return n.position(ctx, last)
	case err != nil:
		return err
	case behind != "":
		*last = behind
		return nil
	}
	if len(b.results) > 0 {
		*last = b.results[len(b.results)-1]
	}
	if lost > 0 {
		n.cfg.Log.ErrorContext(ctx, "outbox full, oldest notifications moved to dead letters", "dropped", lost)
	}
	if b.items > 0 {
		n.cfg.Log.DebugContext(ctx, "notifications queued", "notifications", b.items, "upto", *last)
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// position sets last to the group's last delivered ID: Redis may have lost writes, and the next entries have lower IDs
// than it. A missing group is created at the stream's end or, if it was deleted, at last, so some results may be sent
// again with the same IDs. If the stream ends before last it is a new one, and the group starts at its beginning.
func (n *Notifier) position(ctx context.Context, last *string) error {
	known, err := stream.GroupCursor(ctx, n.cfg.Reader, n.cfg.Namespace.Results(), Group)
	if err != nil {
		return err
	}
	if known != "" {
		*last = known
		return nil
	}
	at := cmp.Or(*last, "$")
	if *last != "" {
		newest, err := n.cfg.Redis.XRevRangeN(ctx, n.cfg.Namespace.Results(), "+", "-", 1).Result()
		if err != nil {
			return err
		}
		if len(newest) == 0 || events.EntryAfter(at, newest[0].ID) {
			at = "0-0"
		}
	}
	err = n.cfg.Redis.XGroupCreateMkStream(ctx, n.cfg.Namespace.Results(), Group, at).Err()
	switch {
	case redis.HasErrorPrefix(err, "BUSYGROUP"): // created by another process
	case err != nil:
		return err
	case *last == "":
		n.cfg.Log.InfoContext(ctx, "consumer group created, notifications begin with the next result", "group", Group)
	default:
		n.cfg.Log.WarnContext(ctx, "consumer group was deleted, created it again", "group", Group, "at", at)
	}
	return n.position(ctx, last)
}

// batch computes the items of entries. It processes at least one entry.
func (n *Notifier) batch(ctx context.Context, last string, results, again []redis.XMessage) (batch, error) {
	b := batch{last: last}
	sets := map[string]watch.Set{}
	for _, entry := range results {
		if b.items >= feedItems {
			break
		}
		if err := n.add(ctx, &b, entry, sets); err != nil {
			return batch{}, err
		}
		b.results = append(b.results, entry.ID)
	}
	for _, entry := range again {
		text, err := json.Marshal(entry.Values)
		if err != nil {
			return batch{}, err
		}
		app, repo := nobody, nobody
		if i, err := decode(text); err == nil {
			app, repo = i.App, i.Repo.Key()
		}
		b.add(app, repo, text)
		b.putBack = append(b.putBack, entry.ID)
	}
	return b, nil
}

// add adds the notifications of a result to a batch. It skips entries that are not results.
func (n *Notifier) add(ctx context.Context, b *batch, entry redis.XMessage, sets map[string]watch.Set) error {
	result, err := changes.ParseResult(entry)
	if err != nil {
		n.cfg.Log.DebugContext(ctx, "result skipped", "entry", entry.ID, "error", err)
		return nil
	}
	if !watch.Notable(result) {
		return nil
	}
	repo := watch.ConcernedRepo(result)
	set, known := sets[repo.Key()]
	if !known {
		set, err = n.cfg.Registry.Of(ctx, repo)
		if isRegistryFault(err) { // must not block other repositories
			n.cfg.Log.ErrorContext(ctx, "result skipped, the watches cannot be decoded", "repo", repo,
				"result", result.ID, "error", err)
			err = nil
		}
		if err != nil {
			return err
		}
		sets[repo.Key()] = set
	}
	chosen := recipients(result, set, n.cfg.Commands)
	if len(chosen) == 0 {
		return nil
	}
	body, err := Document(result)
	if err != nil {
		return fmt.Errorf("result %s: %w", entry.ID, err)
	}
	if len(body) >= maxBody { // not written by a worker
		n.cfg.Log.ErrorContext(ctx, "result skipped, it is too long", "repo", repo, "entry", entry.ID, "bytes", len(body))
		return nil
	}
	trace := n.traceOf(entry)
	for _, w := range chosen {
		_, runs := n.cfg.Commands[w.App]
		text, err := json.Marshal(item{
			ID: idOf(result, w.App), Type: result.Type, App: w.App, Repo: w.Repo, Ref: w.Ref, Entry: entry.ID,
			Body: string(body), Runs: runs, traceContext: trace,
		})
		if err != nil {
			return err
		}
		b.add(w.App, w.Repo.Key(), text)
	}
	return nil
}

// isRegistryFault reports whether the content of the registry is invalid, as opposed to an error of Redis.
func isRegistryFault(err error) bool {
	_, ok := errors.AsType[*events.Error](err)
	return ok
}
