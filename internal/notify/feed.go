package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/watch"
)

const (
	feedAtOnce = 32          // entries of one read
	feedItems  = 1_000       // of so many items, or a result's more, one script puts no more into boxes
	feedBlock  = time.Second // for at most so long one read waits
	feedPause  = 500 * time.Millisecond
)

// feed puts results into boxes until ctx is done.
func (n *Notifier) feed(ctx context.Context) {
	last := "" // the last result that the group has been given; "" when that is not known
	for ctx.Err() == nil {
		err := n.feedNext(ctx, &last)
		n.feeding.report(ctx, err)
		if err != nil {
			pause(ctx, feedPause)
		}
	}
}

// feedNext waits for entries and feeds them, or finds that another has.
func (n *Notifier) feedNext(ctx context.Context, last *string) error {
	if *last == "" {
		position, err := n.position(ctx)
		if err != nil {
			return err
		}
		*last = position
	}
	streams := []string{n.outbox.results, n.outbox.again, *last, "0"}
	read, err := n.cfg.Reader.XRead(ctx, &redis.XReadArgs{Streams: streams, Count: feedAtOnce, Block: feedBlock}).Result()
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, redis.Nil):
		return n.lookBack(ctx, last)
	case err != nil:
		return err
	}
	b, err := n.batch(ctx, *last, read)
	if err != nil {
		return err
	}
	if b.left != nil && len(b.results)+len(b.putBack) == 0 {
		*last = "" // whoever takes it does not tell
		return b.left
	}
	behind, lost, err := n.outbox.feed(ctx, b)
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "NOGROUP"):
		return n.restore(ctx, *last)
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
		n.cfg.Log.ErrorContext(ctx, "outbox is full: the oldest notifications are dead letters now", "dropped", lost)
	}
	if len(b.items) > 0 {
		n.cfg.Log.DebugContext(ctx, "notifications wait to be sent", "notifications", len(b.items), "upto", *last)
		n.stir()
	}
	return nil
}

// position is the last result that the group has been given. Where there is no group it is made, at the
// stream's end.
func (n *Notifier) position(ctx context.Context) (string, error) {
	err := n.cfg.Reader.XGroupCreateMkStream(ctx, n.outbox.results, Group, "$").Err()
	switch {
	case err == nil:
		n.cfg.Log.InfoContext(ctx, "the group of notifications is new: they begin with the next result", "group", Group)
	case !strings.HasPrefix(err.Error(), "BUSYGROUP"):
		return "", err
	}
	groups, err := n.cfg.Reader.XInfoGroups(ctx, n.outbox.results).Result()
	if err != nil {
		return "", err
	}
	for _, g := range groups {
		if g.Name == Group {
			return g.LastDeliveredID, nil
		}
	}
	return "", fmt.Errorf("the consumer group %s was deleted just now", Group)
}

// lookBack sees, when nothing has come for a while, whether the group is still where it was. Redis may have lost its
// last writes, or all: then what comes may have ids before the last that this process knows, and would never be read.
func (n *Notifier) lookBack(ctx context.Context, last *string) error {
	groups, err := n.cfg.Reader.XInfoGroups(ctx, n.outbox.results).Result()
	if err != nil && !redis.HasErrorPrefix(err, "no such key") {
		return err
	}
	for _, g := range groups {
		if g.Name == Group {
			*last = g.LastDeliveredID
			return nil
		}
	}
	return n.restore(ctx, *last)
}

// restore makes the group anew, which somebody deleted, or Redis lost, where it was as far as this process knows.
// Another process may know better, or worse: then some of it is sent again, by the same ids. A stream that has not
// come as far is another, of which nothing was told.
func (n *Notifier) restore(ctx context.Context, last string) error {
	newest, err := n.cfg.Redis.XRevRangeN(ctx, n.outbox.results, "+", "-", 1).Result()
	if err != nil {
		return err
	}
	if len(newest) == 0 || events.EntryAfter(last, newest[0].ID) {
		last = "0-0"
	}
	err = n.cfg.Redis.XGroupCreateMkStream(ctx, n.outbox.results, Group, last).Err()
	switch {
	case err == nil:
		n.cfg.Log.WarnContext(ctx, "the group of notifications was deleted: it is made anew where it was", "group", Group, "at", last)
	case !strings.HasPrefix(err.Error(), "BUSYGROUP"):
		return err
	}
	return nil
}

// batch decides what becomes of entries, of the first at least.
func (n *Notifier) batch(ctx context.Context, last string, read []redis.XStream) (batch, error) {
	b := batch{last: last}
	sets := map[string]watch.Set{}
	for _, s := range read {
		for _, entry := range s.Messages {
			if s.Stream == n.outbox.again {
				back := putBack{id: entry.ID}
				if i, err := itemOf(entry); err == nil {
					i.traceContext = n.traceOf(entry)
					b.items = append(b.items, i)
				} else {
					back.unusable = true
					n.cfg.Log.WarnContext(ctx, "what was put back is no notification", "entry", entry.ID, "error", err)
				}
				b.putBack = append(b.putBack, back)
				continue
			}
			if len(b.items) >= feedItems {
				break
			}
			err := n.add(ctx, &b, entry, sets)
			if events.ClassOf(err) == events.ClassNewer {
				b.left = err
				break
			}
			if err != nil {
				return batch{}, err
			}
			b.results = append(b.results, entry.ID)
		}
	}
	return b, nil
}

// add adds to a batch what apps are to be told of a result. What is no result nobody is told of. One of a type
// that came after this program is left to another that knows it, for a while.
func (n *Notifier) add(ctx context.Context, b *batch, entry redis.XMessage, sets map[string]watch.Set) error {
	payload, _ := entry.Values["payload"].(string)
	result, err := events.ParseResult([]byte(payload))
	switch newer := events.ClassOf(err) == events.ClassNewer; {
	case newer && n.recent(entry.ID):
		return fmt.Errorf("result %s: %w", entry.ID, err)
	case newer:
		n.cfg.Log.ErrorContext(ctx, "nobody is notified of a result: it is for a newer version, of which no process has taken it", "entry", entry.ID, "error", err)
		return nil
	case err != nil:
		n.cfg.Log.DebugContext(ctx, "result passed over", "entry", entry.ID, "error", err)
		return nil
	}
	if !notable(result) {
		return nil
	}
	repo := about(result)
	if result.Type == events.ResultMoved && !result.To.Equal(result.Repo) {
		b.renames = append(b.renames, [2]string{result.Repo.Key(), result.To.Key()})
	}
	set, known := sets[repo.Key()]
	if !known {
		set, err = n.cfg.Registry.Of(ctx, repo)
		if unsound(err) { // others are not to wait for that
			n.cfg.Log.ErrorContext(ctx, "nobody is notified of a result: the registry cannot be read", "repo", repo, "result", result.ID, "error", err)
			err = nil
		}
		if err != nil {
			return err
		}
		sets[repo.Key()] = set
	}
	chosen := recipients(result, set)
	if len(chosen) == 0 {
		return nil
	}
	body, err := bodyOf(result)
	if err != nil {
		return fmt.Errorf("result %s: %w", entry.ID, err)
	}
	if len(body) >= maxBody { // no worker of ours wrote it
		n.cfg.Log.ErrorContext(ctx, "nobody is notified of a result: it is too long", "repo", repo, "entry", entry.ID, "bytes", len(body))
		return nil
	}
	traced := n.traceOf(entry)
	for _, w := range chosen {
		b.items = append(b.items, item{
			ID: idOf(result, w.App), Type: result.Type, App: w.App, Repo: w.Repo, Ref: w.Ref, Entry: entry.ID, Body: string(body),
			traceContext: traced,
		})
	}
	return nil
}

// unsound reports whether the registry itself is at fault, and not the way there.
func unsound(err error) bool {
	_, ok := errors.AsType[*events.Error](err)
	return ok
}

// itemOf is the item of a dead letter that was put back; see outbox.lua.
func itemOf(entry redis.XMessage) (item, error) {
	text := func(name string) string { s, _ := entry.Values[name].(string); return s }
	i := item{ID: text("_watermill_message_uuid"), Type: events.ResultType(text("type")), App: text("app"), Entry: text("entry"), Body: text("payload")}
	err := errors.Join(i.Repo.UnmarshalText([]byte(text("repo"))), i.Ref.UnmarshalText([]byte(text("ref"))))
	switch {
	case err != nil:
		return item{}, err
	case !idPattern.MatchString(i.ID) || i.Repo.IsZero() || i.App == "" || strings.ContainsFunc(i.App, unicode.IsSpace) || len(i.Body) > maxBody || !json.Valid([]byte(i.Body)):
		return item{}, errors.New("a field is missing or is not as a dead letter has it")
	}
	return i, nil
}
