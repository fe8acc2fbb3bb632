package operate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/notify"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

func TestResultHasItsChangeWebhookAndNotifications(t *testing.T) {
	t.Parallel()
	client, ctx, namespace := redistest.Start(t).Client(), t.Context(), events.DefaultNamespace
	results := &Results{Cells: cells.Single(client, cells.Member{Namespace: namespace})}
	add := func(topic string, event any) string {
		payload := string(testenv.Must(json.Marshal(event))(t))
		return testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []string{"payload", payload}}).Result())(t)
	}
	registry := watch.NewRegistry(client, namespace)
	for _, app := range []string{"docs", "scan", "slow", "poller"} {
		w := watch.Watch{App: app, URL: "https://git.example/acme/widgets.git"}
		if app != "poller" {
			w.NotifyURL, w.NotifySecret = "https://"+app+".example/in", app
		}
		if _, _, _, err := registry.Create(ctx, testenv.Must(watch.New(w))(t)); err != nil {
			t.Fatal(err)
		}
	}
	change := testenv.Must(events.NewChange(events.Change{ID: "gitea/d-1/0", Source: "/hooks/gitea", URL: "https://git.example/acme/widgets.git"}))(t)
	asked := add(namespace.Changes(), change)
	result := events.Result{
		ID: change.ID + "/" + asked + "/tree", Type: events.ResultPurged, Commit: strings.Repeat("a", 40), Source: "/lockstep/worker/w1", Time: time.Now(),
		Repo: change.Repo, Deliveries: []string{change.ID}, Attempts: 2,
	}
	entry := add(namespace.Results(), result)
	hook := string(testenv.Must(json.Marshal(map[string]any{"at": time.Now(), "source": "gitea", "delivery": "d-1", "outcome": "accepted", "verified": true}))(t))
	testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: string(namespace) + "hooks:received", Values: []string{"received", hook}}).Result())(t)
	testenv.Must(client.XGroupCreate(ctx, namespace.Results(), notify.Group, "$").Result())(t)
	prefix := namespace.Notifications() + ":"
	testenv.Must(client.ZAdd(ctx, prefix+"sent:docs", redis.Z{Score: 1795223511284, Member: entry}).Result())(t)
	testenv.Must(client.RPush(ctx, prefix+"box:slow acme/widgets", fmt.Sprintf(`7 {"entry":%q}`, entry)).Result())(t)
	testenv.Must(client.HSet(ctx, prefix+"counts", "slow", 1).Result())(t)
	payload := string(testenv.Must(json.Marshal(result))(t))
	letter := testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: namespace.Dead(), Values: []string{
		"reason", "gone", "entry", entry, "original:payload", payload, "original:_watermill_message_uuid", result.ID, "original:app", "scan",
	}}).Result())(t)

	posted := testenv.Must(results.Get(ctx, entry))(t).Posts
	if len(posted) != 3 || !strings.HasPrefix(posted[0].ID, "msg_") {
		t.Fatalf("%+v", posted)
	}
	for _, id := range []string{entry, asked, result.ID, posted[0].ID, posted[2].ID} {
		found, err := results.Get(ctx, id)
		if err != nil || found.Entry != entry || found.Change == nil || found.Change.ID != change.ID || found.Webhook == nil || found.Webhook.Delivery != "d-1" {
			t.Fatalf("%s: %+v, %v", id, found, err)
		}
		states := map[string]string{}
		for _, post := range found.Posts {
			states[post.App] = post.State
			switch {
			case post.App == "docs" && post.At.UnixMilli() != 1795223511284, post.App == "slow" && post.Box == nil, post.App == "scan" && post.Letter != letter:
				t.Errorf("%s: %+v", id, post)
			}
		}
		if fmt.Sprint(states) != "map[docs:accepted scan:given up slow:waiting]" {
			t.Errorf("%s: %v", id, states)
		}
	}
	for _, id := range []string{"1-1", "x", "a/1795223511284-0", ""} {
		if _, err := results.Get(ctx, id); !errors.Is(err, ErrNoResult) {
			t.Errorf("%q: %v", id, err)
		}
	}
}
