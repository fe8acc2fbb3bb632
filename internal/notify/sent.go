package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/execute"
	"lockstep/internal/watch"
)

// The states of a [Post].
const (
	PostAccepted = "accepted" // by the app
	PostWaiting  = "waiting"
	PostUnread   = "unread"   // no notifier has read the result yet
	PostEnded    = "ended"    // accepted, dropped or given up; when is not known any more
	PostGivenUp  = "given up" // see the dead letter
)

// Post is the notification of an app about a result.
type Post struct {
	App    string    `json:"app"`
	ID     string    `json:"id"` // webhook-id
	State  string    `json:"state"`
	At     time.Time `json:"at,omitzero"`      // when the app accepted it, or when it was given up
	Box    *Box      `json:"outbox,omitempty"` // while it waits
	Letter string    `json:"letter,omitempty"` // dead letter of one that was given up
}

// Posts returns the notifications about a result with an entry, by the present watches of the repository that it concerns.
func (o Outboxes) Posts(ctx context.Context, r events.Result, entry string, set watch.Set) ([]Post, error) {
	posts := []Post{}
	if !watch.Notable(r) {
		return posts, nil
	}
	last, err := stream.GroupCursor(ctx, o.Redis, o.Namespace.Results(), Group)
	if err != nil {
		return nil, err
	}
	unnamed := map[string]execute.Command{} // apps that notifiers may have commands for
	for _, w := range set.Watches {
		if w.NotifyURL == "" {
			unnamed[w.App] = execute.Command{}
		}
	}
	for _, w := range recipients(r, set, unnamed) {
		p := Post{App: w.App, ID: idOf(r, w.App), State: PostEnded}
		at, err := o.Redis.ZScore(ctx, o.key("sent:"+w.App), entry).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("read what was sent to %s: %w", w.App, err)
		}
		items, failed := o.Redis.LRange(ctx, o.key("box:"+w.App+" "+w.Repo.Key()), 0, -1).Result()
		if failed != nil {
			return nil, fmt.Errorf("read the outbox of %s: %w", w.App, failed)
		}
		switch waits := slices.ContainsFunc(items, func(text string) bool { return entryOf(text) == entry }); {
		case err == nil:
			p.State, p.At = PostAccepted, time.UnixMilli(int64(at)).UTC()
		case waits:
			boxes, err := o.About(ctx, w.Repo, []string{w.App})
			if err != nil {
				return nil, err
			}
			if p.State = PostWaiting; len(boxes) > 0 {
				p.Box = &boxes[0]
			}
		case last == "" || events.EntryAfter(entry, last):
			p.State = PostUnread
		}
		if _, ok := unnamed[w.App]; ok && (p.State == PostUnread || p.State == PostEnded) {
			continue
		}
		posts = append(posts, p)
	}
	return posts, nil
}

// IsID reports whether an ID is the webhook-id of the notification of a result: of its app or, if it has none, of one of
// the apps.
func IsID(id string, r events.Result, apps []string) bool {
	if r.App != "" {
		apps = []string{r.App}
	}
	return slices.ContainsFunc(apps, func(app string) bool { return id == idOf(r, app) })
}

// entryOf returns the entry of the result of an item of a box.
func entryOf(text string) string {
	_, document, _ := strings.Cut(text, " ") // after its number
	var one item
	_ = json.Unmarshal([]byte(document), &one) // "" if it is corrupt
	return one.Entry
}

// AllSent reports whether nothing is left to post to apps of the results of a repository up to an entry: the
// notifiers have read it, and the outboxes of the repository are empty. Without apps, or if no notifier has
// ever run, nothing is.
func (o Outboxes) AllSent(ctx context.Context, repo events.RepoPath, apps []string, upto string) (bool, error) {
	if len(apps) == 0 {
		return true, nil
	}
	last, err := stream.GroupCursor(ctx, o.Redis, o.Namespace.Results(), Group)
	if err != nil || last == "" || events.EntryAfter(upto, last) {
		return err == nil && last == "", err
	}
	lengths := make([]*redis.IntCmd, len(apps))
	_, err = o.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, app := range apps {
			lengths[i] = pipe.LLen(ctx, o.key("box:"+app+" "+repo.Key()))
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("read the outboxes of %s: %w", repo, err)
	}
	return !slices.ContainsFunc(lengths, func(n *redis.IntCmd) bool { return n.Val() > 0 }), nil
}
