package notify

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

//go:embed hasten.lua
var hastenSource string

var hastenScript = redis.NewScript(outboxSource + hastenSource)

const maxHastened = 10_000 // outboxes per call of SendNow

// Outboxes are the notifications that wait to be posted to apps, with or without a [Notifier]. Redis and Namespace are
// required.
type Outboxes struct {
	Redis     redis.UniversalClient
	Namespace events.Namespace
}

// App has the notifications that wait to be posted to an app.
type App struct {
	Name  string `json:"app"`
	Items int64  `json:"waiting"`
	Bytes int64  `json:"bytes"`
	Repos int64  `json:"repositories"` // with items
	// of the first attempt or, for an item that is being posted, the end of its claim; by Redis' clock
	Next time.Time `json:"next,omitzero"`
}

// Box has the notifications that wait to be posted to an app about one repository. The first blocks the others.
type Box struct {
	App     string    `json:"app"`
	Repo    string    `json:"repo"`
	Cell    string    `json:"cell,omitempty"` // in lists, if there are several
	ID      string    `json:"id,omitempty"`   // webhook-id of the first item
	Items   int64     `json:"waiting"`
	Failed  int       `json:"failed_attempts,omitempty"` // at the first item
	Posting bool      `json:"posting,omitempty"`         // the first item is being posted
	Next    time.Time `json:"next,omitzero"`             // attempt, by Redis' clock
	Queued  time.Time `json:"since,omitzero"`            // when the result of the first item was settled; zero if unknown
	Error   string    `json:"error,omitempty"`           // of the last attempt at the first item
	ErrorAt time.Time `json:"error_at,omitzero"`         // by Redis' clock
}

func (o Outboxes) key(name string) string { return o.Namespace.Notifications() + ":" + name }

// Apps returns the apps with waiting notifications. It takes two round trips.
func (o Outboxes) Apps(ctx context.Context) ([]App, error) {
	pipe := o.Redis.Pipeline()
	counts, sizes := pipe.HGetAll(ctx, o.key("counts")), pipe.HGetAll(ctx, o.key("sizes"))
	due := pipe.ZRangeWithScores(ctx, o.key("apps"), 0, -1)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read the outboxes: %w", err)
	}
	next := map[string]float64{}
	for _, z := range due.Val() {
		name, _ := z.Member.(string)
		next[name] = z.Score
	}
	var apps []App
	for name, text := range counts.Val() {
		a := App{Name: name}
		a.Items, _ = strconv.ParseInt(text, 10, 64)
		a.Bytes, _ = strconv.ParseInt(sizes.Val()[name], 10, 64)
		if score, ok := next[name]; ok {
			a.Next = time.UnixMilli(int64(score)).UTC()
		}
		if a.Items > 0 {
			apps = append(apps, a)
		}
	}
	repos := make([]*redis.IntCmd, len(apps))
	_, err := o.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, a := range apps {
			repos[i] = pipe.ZCard(ctx, o.key("heads:"+a.Name))
		}
		return nil
	})
	if err != nil && len(apps) > 0 {
		return nil, fmt.Errorf("read the outboxes: %w", err)
	}
	for i := range apps {
		apps[i].Repos = repos[i].Val()
	}
	return apps, nil
}

// Boxes returns the outboxes of an app, the oldest items first. It takes two round trips.
func (o Outboxes) Boxes(ctx context.Context, app string, limit int) ([]Box, error) {
	heads, err := o.Redis.ZRange(ctx, o.key("heads:"+app), 0, int64(limit)-1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the outbox of %s: %w", app, err)
	}
	keys := make([]boxKey, len(heads))
	for i, repo := range heads {
		keys[i] = boxKey{app, repo}
	}
	return o.read(ctx, keys)
}

// About returns what waits to be posted about a repository, by app. It takes three round trips.
func (o Outboxes) About(ctx context.Context, repo events.RepoPath) ([]Box, error) {
	apps, err := o.Redis.HKeys(ctx, o.key("counts")).Result()
	if err != nil {
		return nil, fmt.Errorf("read the outboxes: %w", err)
	}
	slices.Sort(apps)
	lengths := make([]*redis.IntCmd, len(apps))
	_, err = o.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, app := range apps {
			lengths[i] = pipe.LLen(ctx, o.key("box:"+app+" "+repo.Key()))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the outboxes: %w", err)
	}
	var keys []boxKey
	for i, app := range apps {
		if lengths[i].Val() > 0 {
			keys = append(keys, boxKey{app, repo.Key()})
		}
	}
	boxes, err := o.read(ctx, keys)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(boxes, func(b Box) bool { return b.Items == 0 }), nil
}

// Failing returns the number of outboxes whose first item has failed, and some of their apps, sorted, in constant time.
func (o Outboxes) Failing(ctx context.Context) (boxes int64, apps []string, err error) {
	const scanned = 100 // names of boxes
	pipe := o.Redis.Pipeline()
	count, names := pipe.HLen(ctx, o.key("tries")), pipe.HScan(ctx, o.key("tries"), 0, "", scanned)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, nil, fmt.Errorf("count failing notifications: %w", err)
	}
	fields, _ := names.Val()
	for i, name := range fields {
		if app, _, _ := strings.Cut(name, " "); i%2 == 0 && !slices.Contains(apps, app) { // odd ones are values
			apps = append(apps, app)
		}
	}
	slices.Sort(apps)
	return count.Val(), apps, nil
}

type boxKey struct{ app, repo string }

// read reads boxes in one round trip, also empty ones.
func (o Outboxes) read(ctx context.Context, keys []boxKey) ([]Box, error) {
	boxes := make([]Box, len(keys))
	if len(keys) == 0 {
		return boxes, nil
	}
	type reply struct {
		due                         *redis.FloatCmd
		length                      *redis.IntCmd
		first, tries, claim, failed *redis.StringCmd
	}
	replies, pipe := make([]reply, len(keys)), o.Redis.Pipeline()
	for i, k := range keys {
		name := k.app + " " + k.repo
		replies[i] = reply{
			pipe.ZScore(ctx, o.key("due:"+k.app), k.repo),
			pipe.LLen(ctx, o.key("box:"+name)), pipe.LIndex(ctx, o.key("box:"+name), 0),
			pipe.HGet(ctx, o.key("tries"), name), pipe.HGet(ctx, o.key("claims"), name),
			pipe.HGet(ctx, o.key("errors:"+k.app), k.repo),
		}
	}
	commands, _ := pipe.Exec(ctx) // its error may be redis.Nil, of an absent field, and hide others
	for _, c := range commands {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("read the outboxes: %w", err)
		}
	}
	for i, r := range replies {
		first := itemOf(r.first.Val())
		boxes[i] = Box{
			App: keys[i].app, Repo: keys[i].repo, ID: first.ID, Items: r.length.Val(), Posting: r.claim.Err() == nil,
			Queued: events.EntryTime(first.Entry),
		}
		boxes[i].Failed, _ = strconv.Atoi(r.tries.Val())
		if score := r.due.Val(); score > 0 {
			boxes[i].Next = time.UnixMilli(int64(score)).UTC()
		}
		boxes[i].ErrorAt, boxes[i].Error = errorOf(r.failed.Val())
	}
	return boxes, nil
}

// errorOf returns the kept error of a box's first item, or "" if there is none.
func errorOf(kept string) (time.Time, string) {
	at, text, ok := strings.Cut(kept, " ")
	ms, err := strconv.ParseInt(strings.TrimSuffix(at, "!"), 10, 64)
	if !ok || err != nil {
		return time.Time{}, ""
	}
	return time.UnixMilli(ms).UTC(), text
}

// SendNow makes the waiting notifications of an app due now, instead of after the delay since their last
// failure. It returns the number of repositories whose notifications were not due, at most 10,000.
func (o Outboxes) SendNow(ctx context.Context, app string) (int, error) {
	n, err := hastenScript.Run(ctx, o.Redis, o.keys(), o.args(app, maxHastened)...).Int()
	if err != nil {
		return 0, fmt.Errorf("send the outbox of %s: %w", app, err)
	}
	return n, nil
}
