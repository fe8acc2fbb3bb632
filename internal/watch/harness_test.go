package watch_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// bench is a registry on a private Redis, with helpers to inspect what it writes.
type bench struct {
	*watch.Registry
	t      testing.TB
	client redis.UniversalClient
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return benchOn(t, redistest.Start(t))
}

func benchOn(t testing.TB, server *redistest.Server) *bench {
	client := server.Client()
	return &bench{watch.NewRegistry(client, events.DefaultNamespace), t, client}
}

func path(t testing.TB, text string) events.RepoPath {
	t.Helper()
	repo, err := events.ParseRepoPath(text)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

func selector(t testing.TB, text string) watch.Selector {
	t.Helper()
	s, err := watch.ParseSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// of returns app's watch of a repository on example.com.
func of(t testing.TB, app, repo, ref string) watch.Watch {
	t.Helper()
	w, err := watch.New(watch.Watch{App: app, URL: "https://example.com/" + repo + ".git", Ref: selector(t, ref)})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (b *bench) put(watches ...watch.Watch) int {
	b.t.Helper()
	n, err := b.Put(context.Background(), watches...)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bench) remove(keys ...watch.Key) int {
	b.t.Helper()
	n, err := b.Remove(context.Background(), keys...)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bench) set(repo string) watch.Set {
	b.t.Helper()
	set, err := b.Of(context.Background(), path(b.t, repo))
	if err != nil {
		b.t.Fatal(err)
	}
	return set
}

// byRemote returns the watches of a remote.
func (b *bench) byRemote(url string) watch.RemoteWatches {
	b.t.Helper()
	found, err := b.ByRemote(context.Background(), url)
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// versions returns the current version of a repository on example.com, by remote.
func (b *bench) versions(repo string) map[string]string {
	b.t.Helper()
	url := "https://example.com/" + repo
	return map[string]string{watch.RemoteKey(url): b.byRemote(url).Version}
}

// names formats watches as "app ref".
func names(watches []watch.Watch) []string {
	list := []string{}
	for _, w := range watches {
		list = append(list, w.App+" "+w.Ref.String())
	}
	return list
}

// changes returns the changes in the stream, decoded like workers decode them.
func (b *bench) changes() []events.Change {
	b.t.Helper()
	entries, err := b.client.XRange(context.Background(), events.DefaultNamespace.Changes(), "-", "+").Result()
	if err != nil {
		b.t.Fatal(err)
	}
	var changes []events.Change
	for _, e := range entries {
		document, ok := e.Values["payload"].(string)
		if !ok { // plain fields
			text, err := json.Marshal(e.Values)
			if err != nil {
				b.t.Fatal(err)
			}
			document = string(text)
		}
		c, err := events.ParseChange([]byte(document))
		if err != nil {
			b.t.Fatalf("%s: %v", document, err)
		}
		changes = append(changes, c)
	}
	return changes
}

// drain empties the stream and returns its changes, formatted as "due acme/widgets".
func (b *bench) drain() []string {
	b.t.Helper()
	list := []string{}
	for _, c := range b.changes() {
		kind := map[events.ChangeType]string{
			events.ChangeDue: "due", events.ChangeRemoved: "removed", events.ChangePushed: "pushed", events.ChangeMoved: "moved",
		}[c.Type]
		if c.Force {
			kind += " by force"
		}
		if c.Type == events.ChangeDue && c.App != "" {
			kind += " for " + c.App
		}
		list = append(list, kind+" "+c.Repo.String())
	}
	if err := b.client.XTrimMaxLen(context.Background(), events.DefaultNamespace.Changes(), 0).Err(); err != nil {
		b.t.Fatal(err)
	}
	return list
}

// dump returns the whole content of Redis by key.
func (b *bench) dump() map[string]string {
	b.t.Helper()
	ctx := context.Background()
	all := map[string]string{}
	keys, err := b.client.Keys(ctx, "*").Result()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, key := range keys {
		var value any
		switch kind := b.client.Type(ctx, key).Val(); kind {
		case "hash":
			value = b.client.HGetAll(ctx, key).Val()
		case "zset":
			value = b.client.ZRangeWithScores(ctx, key, 0, -1).Val()
		case "stream":
			value = b.client.XRange(ctx, key, "-", "+").Val()
		case "string":
			value = b.client.Get(ctx, key).Val()
		default:
			b.t.Fatalf("%s is a %s", key, kind)
		}
		text, err := json.Marshal(value)
		if err != nil {
			b.t.Fatal(err)
		}
		all[key] = string(text)
	}
	return all
}
