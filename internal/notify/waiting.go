package notify

import (
	"cmp"
	"context"
	_ "embed" // the script
	"encoding/json"
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

// Outboxes reads the notifications that wait to be posted to apps. It needs no [Notifier]. Redis and Namespace are required.
type Outboxes struct {
	Redis     redis.UniversalClient
	Namespace events.Namespace
}

// App has the notifications that wait to be posted to an app.
type App struct {
	Name         string
	Items, Bytes int64
	Repos        int64     // repositories with items
	Next         time.Time // of the first attempt or, for an item that is being posted, the end of its claim; by Redis' clock
}

// Box has the notifications that wait to be posted to an app about one repository. The first blocks the others.
type Box struct {
	Repo    string
	Items   int64
	Failed  int       // attempts at the first item
	Posting bool      // the first item is being posted
	Next    time.Time // of the next attempt, by Redis' clock
	Queued  time.Time // when the result of the first item was settled; zero if unknown
}

func (o Outboxes) key(name string) string { return o.Namespace.Notifications() + ":" + name }

// Apps returns the apps with waiting notifications, those with the most first. It takes two round trips.
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
	slices.SortFunc(apps, func(a, b App) int { return cmp.Or(cmp.Compare(b.Items, a.Items), cmp.Compare(a.Name, b.Name)) })
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
	boxes := make([]Box, len(heads))
	if len(heads) == 0 {
		return boxes, nil
	}
	pipe := o.Redis.Pipeline()
	due := pipe.ZMScore(ctx, o.key("due:"+app), heads...)
	names, lengths, firsts := make([]string, len(heads)), make([]*redis.IntCmd, len(heads)), make([]*redis.StringCmd, len(heads))
	for i, repo := range heads {
		names[i] = app + " " + repo
		lengths[i], firsts[i] = pipe.LLen(ctx, o.key("box:"+names[i])), pipe.LIndex(ctx, o.key("box:"+names[i]), 0)
	}
	tries, claims := pipe.HMGet(ctx, o.key("tries"), names...), pipe.HMGet(ctx, o.key("claims"), names...)
	if _, err := pipe.Exec(ctx); err != nil && err != redis.Nil { //nolint:errorlint // of an empty box, exactly
		return nil, fmt.Errorf("read the outbox of %s: %w", app, err)
	}
	for i, repo := range heads {
		boxes[i] = Box{Repo: repo, Items: lengths[i].Val(), Posting: claims.Val()[i] != nil, Queued: queuedAt(firsts[i].Val())}
		if text, ok := tries.Val()[i].(string); ok {
			boxes[i].Failed, _ = strconv.Atoi(text)
		}
		if score := due.Val()[i]; score > 0 {
			boxes[i].Next = time.UnixMilli(int64(score)).UTC()
		}
	}
	return boxes, nil
}

// queuedAt returns when the result of an item was settled.
func queuedAt(text string) time.Time {
	_, document, _ := strings.Cut(text, " ") // after its number
	var first item
	if json.Unmarshal([]byte(document), &first) != nil {
		return time.Time{}
	}
	return events.EntryTime(first.Entry)
}

// SendNow makes the waiting notifications of an app due now, instead of after the delay since their last failure. It returns the
// number of repositories whose notifications were not due, at most 10,000.
func (o Outboxes) SendNow(ctx context.Context, app string) (int, error) {
	box := newOutbox(Config{Redis: o.Redis, Namespace: o.Namespace})
	n, err := hastenScript.Run(ctx, o.Redis, box.keys, append(box.common, app, maxHastened)...).Int()
	if err != nil {
		return 0, fmt.Errorf("send the outbox of %s: %w", app, err)
	}
	return n, nil
}
