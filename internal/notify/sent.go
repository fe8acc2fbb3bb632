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
	boxes, err := o.About(ctx, watch.ConcernedRepo(r))
	if err != nil {
		return nil, err
	}
	for _, w := range recipients(r, set, unnamed) {
		p := Post{App: w.App, ID: idOf(r, w.App), State: PostEnded}
		at, err := o.Redis.ZScore(ctx, o.key("sent:"+w.App), entry).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("read what was sent to %s: %w", w.App, err)
		}
		waiting, failed := o.waiting(ctx, boxes, w.App, entry)
		if failed != nil {
			return nil, failed
		}
		switch {
		case err == nil:
			p.State, p.At = PostAccepted, time.UnixMilli(int64(at)).UTC()
		case waiting != nil:
			p.State, p.Box = PostWaiting, waiting
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

// waiting returns the outbox of an app, among those of a repository, if the notification about a result is in it.
func (o Outboxes) waiting(ctx context.Context, boxes []Box, app, entry string) (*Box, error) {
	at := slices.IndexFunc(boxes, func(b Box) bool { return b.App == app })
	if at < 0 {
		return nil, nil
	}
	items, err := o.Redis.LRange(ctx, o.key("box:"+app+" "+boxes[at].Repo), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the outbox of %s: %w", app, err)
	}
	if !slices.ContainsFunc(items, func(text string) bool { return itemOf(text).Entry == entry }) {
		return nil, nil
	}
	return &boxes[at], nil
}

// IsID reports whether an ID is the webhook-id of the notification of a result: of its app or, if it has none, of one of
// the apps.
func IsID(id string, r events.Result, apps []string) bool {
	if r.App != "" {
		apps = []string{r.App}
	}
	return slices.ContainsFunc(apps, func(app string) bool { return id == idOf(r, app) })
}

// itemOf returns an item of a box, or a part of it if it is corrupt.
func itemOf(text string) (one item) {
	_, document, _ := strings.Cut(text, " ") // after its number
	_ = json.Unmarshal([]byte(document), &one)
	return one
}

// AllSent reports whether nothing is left to post about a repository: no notification waits, and the notifiers have
// read the results up to an entry, if that is not "" and any notifier has run.
func (o Outboxes) AllSent(ctx context.Context, repo events.RepoPath, upto string) (bool, error) {
	if upto != "" {
		last, err := stream.GroupCursor(ctx, o.Redis, o.Namespace.Results(), Group)
		if err != nil || last != "" && events.EntryAfter(upto, last) {
			return false, err
		}
	}
	boxes, err := o.About(ctx, repo)
	return err == nil && len(boxes) == 0, err
}
