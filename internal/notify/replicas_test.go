package notify

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/credential"
	"lockstep/internal/execute"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/watch"
)

// childMain is the main function of a notifier process that the test kills.
func childMain(redisURL, credentials string) {
	server, err := redisx.Parse(redisURL, nil)
	if err != nil {
		panic(err)
	}
	client := server.Open()
	n, err := New(Config{
		Redis: client, Reader: server.Open(), Registry: watch.NewRegistry(client, namespace),
		Secrets: credential.NewStore(credentials, func(string) string { return "" }), Hosts: []string{"127.0.0.1"},
		limits: limits{claim: shortClaim, timeout: shortClaim / 3, schedule: slices.Repeat([]time.Duration{20 * time.Millisecond}, 1000)},
		Root:   os.Getenv("LOCKSTEP_TEST_ROOT"), Mounted: func(context.Context) error { return nil }, Commands: map[string]execute.Command{"hook": shell(os.Getenv("LOCKSTEP_TEST_SCRIPT"))},
	})
	if err != nil {
		panic(err)
	}
	n.Run(context.Background())
}

const shortClaim = 1500 * time.Millisecond

// child starts a notifier process. It is killed when the test ends, if not before.
func (w *world) child(env ...string) (kill func()) {
	w.t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "LOCKSTEP_TEST_NOTIFIER="+w.server.URL(), "LOCKSTEP_TEST_CREDENTIALS="+w.dir)
	child.Env = append(child.Env, env...)
	child.Stderr = w.log
	must(0, child.Start())(w.t)
	kill = sync.OnceFunc(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	w.t.Cleanup(kill)
	return kill
}

// Repeated kills neither lose nor reorder results.
func TestRepeatedlyKilledProcesses(t *testing.T) {
	w := newWorld(t)
	var posts atomic.Int64
	apps := newReceiver(t, func(http.ResponseWriter, post) int {
		if posts.Add(1)%7 == 0 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	w.signsFor(apps.URL)
	repos := []string{"acme/a", "acme/b", "acme/c"}
	names := []string{"docs", "site"}
	for _, app := range names {
		w.watch(app, apps.URL+"/"+app, repos...)
	}
	w.run()() // creates the group
	kills := []func(){w.child(), w.child(), w.child()}
	const each, storms = 40, 6
	delivered := func(posts []post) map[string]bool {
		got := map[string]bool{}
		for _, p := range posts {
			if p.status == http.StatusOK {
				got[p.result.ID] = true
			}
		}
		return got
	}
	for storm := range storms {
		for i := storm * each / storms; i < (storm+1)*each/storms; i++ {
			for _, repo := range repos {
				for _, app := range names {
					w.publish(synced(t, fmt.Sprintf("%d//%s %s", i, app, repo), app, repo))
				}
			}
		}
		some := ((storm+1)*each/storms - 3) * len(repos) * len(names) // the others are in flight
		apps.await(func(p []post) bool { return len(delivered(p)) >= some })
		kills[storm%3]()
		kills[storm%3] = w.child()
	}
	total := each * len(repos) * len(names)
	all := apps.await(func(p []post) bool { return len(p) >= total && len(delivered(p)) == total })
	next := map[string]int{} // of each box
	for _, p := range all {
		number, box, _ := strings.Cut(p.result.ID, "//")
		i := must(strconv.Atoi(number))(t)
		if i > next[box] {
			t.Fatalf("%s was sent %d before %d", box, i, next[box])
		}
		if i == next[box] && p.status == http.StatusOK { // else its delivery was not recorded, so it is sent again
			next[box]++
		}
	}
}

func TestTwoReplicas(t *testing.T) {
	w := newWorld(t)
	apps := newReceiver(t, ok)
	w.signsFor(apps.URL)
	repos := []string{"acme/a", "acme/b", "acme/c", "acme/d"}
	names := []string{"docs", "site"}
	for _, app := range names {
		w.watch(app, apps.URL+"/"+app, repos...)
	}
	w.run()
	w.run()
	const each = 60
	for i := range each {
		for _, repo := range repos {
			for _, app := range names {
				w.publish(synced(t, fmt.Sprintf("%d//%s %s", i, app, repo), app, repo))
			}
		}
	}
	total := each * len(repos) * len(names)
	w.await(OutcomeDelivered, total)
	posts := apps.await(atLeast(total))
	if len(posts) != total {
		t.Errorf("%d posts, want %d", len(posts), total)
	}
	mustBeInOrder(t, posts, each)
}

// Queued results do not hold back the stream, even if they were not sent yet.
func TestGroupDoesNotPinTheStream(t *testing.T) {
	w := newWorld(t)
	w.watch("docs", "http://127.0.0.1:1/docs", "acme/a")
	stop := w.run(func(c *Config) { c.schedule = []time.Duration{0, time.Hour} })
	w.publish(synced(t, "1", "docs", "acme/a"))
	w.await(OutcomeFailed, 1)
	latest, unsettled, err := stream.ReadWatermarks(t.Context(), w.redis, namespace.Results())
	if err != nil || unsettled != "" {
		t.Errorf("unsettled: %s, %v", unsettled, err)
	}
	groups := must(w.redis.XInfoGroups(t.Context(), namespace.Results()).Result())(t)
	if g := groups[0]; g.Pending != 0 || g.LastDeliveredID != latest || w.server.Real && g.Lag != 0 {
		t.Errorf("group: %+v", g)
	}
	stop()
	w.publish(synced(t, "2", "docs", "acme/a"), synced(t, "3", "docs", "acme/a"))
	latest, unsettled, err = stream.ReadWatermarks(t.Context(), w.redis, namespace.Results())
	if err != nil || unsettled == "" || unsettled == latest {
		t.Errorf("results that were not fed count as settled: %s, %s, %v", latest, unsettled, err)
	}
}

func TestNotificationsBeginWithTheGroup(t *testing.T) {
	w, apps := newApp(t)
	w.publish(synced(t, "before", "docs", "acme/a"))
	w.run()
	w.publish(synced(t, "after", "docs", "acme/a"))
	w.await(OutcomeDelivered, 1)
	if p := apps.await(atLeast(1)); p[0].result.ID != "after" {
		t.Errorf("sent %s", p[0].result.ID)
	}
}

func TestShutdown(t *testing.T) {
	for name, tc := range map[string]struct {
		grace   time.Duration
		waiting int64
	}{
		"a post ends within the grace": {time.Hour, 0},
		"a post exceeds the grace":     {time.Millisecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			begun, release := make(chan struct{}), make(chan struct{})
			var first atomic.Bool
			apps := newReceiver(t, func(http.ResponseWriter, post) int {
				if first.CompareAndSwap(false, true) {
					close(begun)
					<-release
				}
				return http.StatusOK
			})
			w.signsFor(apps.URL)
			w.watch("docs", apps.URL+"/docs", "acme/a")
			stop := w.run(func(c *Config) { c.Grace = tc.grace })
			w.publish(synced(t, "1", "docs", "acme/a"))
			<-begun
			stopped := make(chan struct{})
			go func() { stop(); close(stopped) }()
			if tc.waiting == 0 {
				close(release)
				<-stopped
			} else {
				<-stopped
				close(release)
			}
			if n := w.waiting(); n != tc.waiting {
				t.Fatalf("%d queued, want %d", n, tc.waiting)
			}
			if tc.waiting == 0 {
				return
			}
			w.run() // the returned item is due immediately
			w.await(OutcomeDelivered, 1)
			posts := apps.await(atLeast(2))
			if posts[0].id() != posts[1].id() {
				t.Error("another id")
			}
		})
	}
}

func TestRedisOutage(t *testing.T) {
	w := newWorld(t, "--appendonly", "yes", "--appendfsync", "always")
	apps := newReceiver(t, ok)
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/docs", "acme/a")
	w.run(func(c *Config) { c.claim, c.timeout = shortClaim, shortClaim/3 })
	const each = 30
	for i := range each {
		w.publish(synced(t, fmt.Sprintf("%d//docs acme/a", i), "docs", "acme/a"))
		if i == 10 || i == 20 {
			apps.await(atLeast(i / 2))
			w.server.Stop()
			w.server.Restart()
		}
	}
	sent := func(posts []post) []string {
		var ids []string
		for _, p := range posts {
			if !slices.Contains(ids, p.result.ID) {
				ids = append(ids, p.result.ID)
			}
		}
		return ids
	}
	ids := sent(apps.await(func(p []post) bool { return len(sent(p)) == each }))
	for i, id := range ids {
		if want := fmt.Sprintf("%d//docs acme/a", i); id != want {
			t.Fatalf("post %d is %s", i, id)
		}
	}
}

// All keys of the scripts, declared or not, are in one slot.
func TestRedisCluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	server := must(redisx.Parse(cluster.URL(), nil))(t)
	w := newWorld(t)
	w.redis = server.Open()
	defer w.redis.Close()
	w.registry = watch.NewRegistry(w.redis, namespace)
	apps := newReceiver(t, func(_ http.ResponseWriter, p post) int {
		if p.path == "/down" {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/docs", "acme/a")
	w.watch("down", apps.URL+"/down", "acme/a")
	w.run(soon(2), func(c *Config) { c.Redis, c.Reader, c.Registry = w.redis, server.Open(), w.registry })
	w.publish(synced(t, "1", "docs", "acme/a"), synced(t, "2", "down", "acme/a"))
	for range 3 {
		select {
		case <-w.outcomes:
		case <-time.After(patience):
			t.Fatal("nothing was sent")
		}
	}
	if letters := w.letters(); len(letters) != 1 || w.waiting() != 0 {
		t.Errorf("%d letters, %d queued", len(letters), w.waiting())
	}
}

// Nothing is missed if the group is deleted while a notifier runs.
func TestDeletedGroupIsRestored(t *testing.T) {
	w, apps := newApp(t)
	w.run()
	result := func(i int) events.Result { return synced(t, fmt.Sprintf("%d//docs acme/a", i), "docs", "acme/a") }
	w.publish(result(0))
	w.await(OutcomeDelivered, 1)
	if n := must(w.redis.XGroupDestroy(t.Context(), namespace.Results(), Group).Result())(t); n != 1 {
		t.Fatal("there was no group")
	}
	w.publish(result(1), result(2))
	w.await(OutcomeDelivered, 2)
	mustBeInOrder(t, apps.await(atLeast(3)), 3)
	if !strings.Contains(w.log.String(), "level=WARN msg=\"consumer group was deleted") {
		t.Error("it is not logged")
	}
}

// hook is a hook of a client's commands.
type hook func(next redis.ProcessHook) redis.ProcessHook

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return h(next) }
func (hook) DialHook(next redis.DialHook) redis.DialHook            { return next }
func (hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A process that was paused does not post items that another process has claimed since.
func TestPausedProcessReturnsItsClaims(t *testing.T) {
	w, apps := newApp(t)
	begun, released := make(chan struct{}, 1), make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	stop := w.run(func(c *Config) {
		client := w.server.Client()
		client.AddHook(hook(func(next redis.ProcessHook) redis.ProcessHook {
			return func(ctx context.Context, cmd redis.Cmder) error {
				if _, posting := ctx.Deadline(); posting { // the feeder has none
					select {
					case begun <- struct{}{}:
					default:
					}
					<-released
				}
				return next(context.WithoutCancel(ctx), cmd)
			}
		}))
		c.claim, c.timeout, c.Grace, c.Registry = 300*time.Millisecond, 100*time.Millisecond, time.Hour, watch.NewRegistry(client, namespace)
	})
	defer release()
	w.publish(synced(t, "0//docs acme/a", "docs", "acme/a"), synced(t, "1//docs acme/a", "docs", "acme/a"))
	<-begun
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }() // it starts no new posts, but the current one is still in flight
	w.run()
	w.await(OutcomeDelivered, 2)
	release()
	<-stopped
	posts := apps.await(atLeast(2))
	mustBeInOrder(t, posts, 2)
	if len(posts) != 2 || !strings.Contains(w.log.String(), errLate.Error()) {
		t.Errorf("%d posts", len(posts))
	}
}
