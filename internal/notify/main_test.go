package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/credential"
	"lockstep/internal/logtest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestMain lets the test binary act as a notifier process that tests can kill.
func TestMain(m *testing.M) {
	if url := os.Getenv("LOCKSTEP_TEST_NOTIFIER"); url != "" {
		childMain(url, os.Getenv("LOCKSTEP_TEST_CREDENTIALS"))
		return
	}
	testenv.Parallel(8)
	testenv.Main(m)
}

const (
	namespace = events.DefaultNamespace
	patience  = 60 * time.Second // for events that normally take milliseconds
	secret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	former    = "a secret as it stands"
)

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// post is one request to a receiver.
type post struct {
	path   string
	header http.Header
	body   []byte
	result events.Result
	status int // of the answer
}

func (p post) id() string { return p.header.Get("webhook-id") }

// receiver is an HTTP server for apps, one path each.
type receiver struct {
	*httptest.Server
	t testing.TB

	mu      sync.Mutex
	posts   []post
	changed chan struct{}
	answer  func(w http.ResponseWriter, p post) int // returns 0 if it has written the answer
}

func newReceiver(t testing.TB, answer func(w http.ResponseWriter, p post) int) *receiver {
	r := &receiver{t: t, answer: answer, changed: make(chan struct{})}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func ok(http.ResponseWriter, post) int { return http.StatusNoContent }

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p := post{path: req.URL.Path, header: req.Header}
	p.body, _ = io.ReadAll(req.Body)
	p.result, _ = events.ParseResult(p.body)
	p.status = r.answer(w, p)
	r.mu.Lock()
	r.posts = append(r.posts, p)
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	if p.status != 0 {
		w.WriteHeader(p.status)
	}
}

// await waits until enough returns true and returns the posts.
func (r *receiver) await(enough func([]post) bool) []post {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		posts, changed := slices.Clone(r.posts), r.changed
		r.mu.Unlock()
		if enough(posts) {
			return posts
		}
		select {
		case <-changed:
		case <-deadline:
			r.t.Fatalf("timeout after %d posts", len(posts))
		}
	}
}

func atLeast(n int) func([]post) bool { return func(p []post) bool { return len(p) >= n } }

// world is a private Redis with a registry, credentials and notifiers.
type world struct {
	t        *testing.T
	server   *redistest.Server
	redis    redis.UniversalClient
	registry *watch.Registry
	dir      string // of credentials
	log      *logtest.Buffer
	outcomes chan string
}

func newWorld(t *testing.T, args ...string) *world {
	t.Parallel() // each has a private Redis
	server := redistest.Start(t, args...)
	client := server.Client()
	w := &world{t: t, server: server, redis: client, registry: watch.NewRegistry(client, namespace), dir: t.TempDir(),
		log: &logtest.Buffer{}, outcomes: make(chan string, 10_000)}
	w.credential("signer", secret, former, "http://127.0.0.1/ http://localhost/")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
	return w
}

// credential writes the directory of a credential. urls may have any port.
func (w *world) credential(name, secret, former, urls string) {
	w.t.Helper()
	dir := filepath.Join(w.dir, name)
	_ = os.MkdirAll(dir, 0o700)
	for file, text := range map[string]string{"signingSecret": secret, "previousSigningSecret": former, "urls": urls} {
		must(0, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))(w.t)
	}
}

// newApp returns a world in which app docs watches acme/a, and its server, which accepts all posts.
func newApp(t *testing.T) (*world, *receiver) {
	t.Helper()
	w, apps := newWorld(t), newReceiver(t, ok)
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/docs", "acme/a")
	return w, apps
}

// eventually polls a condition that has no signal.
func (w *world) eventually(holds func() bool, format string, args ...any) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("timeout: "+format, args...)
		}
	}
}

// signsFor allows the credential to sign for servers.
func (w *world) signsFor(urls ...string) {
	w.credential("signer", secret, former, strings.Join(urls, " "))
}

// watch adds watches of an app for the default branches of repositories.
func (w *world) watch(app, notifyURL string, repos ...string) {
	w.t.Helper()
	for _, repo := range repos {
		w.put(watch.Watch{App: app, Repo: must(events.ParseRepoPath(repo))(w.t), URL: "https://git.example.org/" + repo,
			NotifyURL: notifyURL, NotifySecret: "signer"})
	}
}

func (w *world) put(watches ...watch.Watch) {
	w.t.Helper()
	must(w.registry.Put(w.t.Context(), watches...))(w.t)
}

func (w *world) config() Config {
	return Config{
		Redis: w.server.Client(), Reader: w.server.Client(), Registry: watch.NewRegistry(w.server.Client(), namespace),
		Secrets: credential.NewStore(w.dir, func(string) string { return "" }), Hosts: []string{"127.0.0.0/8"},
		UserAgent: "lockstep/test", Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Observe: func(outcome string, _ time.Duration) { w.outcomes <- outcome },
	}
}

// run starts a notifier, which ends with the test or with stop, and waits until the group exists.
func (w *world) run(change ...func(*Config)) (stop func()) {
	w.t.Helper()
	cfg := w.config()
	for _, c := range change {
		c(&cfg)
	}
	n := must(New(cfg))(w.t)
	must(0, n.position(w.t.Context(), new(string)))(w.t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }()
	stop = func() { cancel(); <-done }
	w.t.Cleanup(stop)
	return stop
}

// await waits until the given number of attempts have had an outcome.
func (w *world) await(outcome string, times int) {
	w.t.Helper()
	deadline := time.After(patience)
	for n := 0; n < times; {
		select {
		case got := <-w.outcomes:
			if got == outcome {
				n++
			}
		case <-deadline:
			w.t.Fatalf("%d of %d outcomes %q", n, times, outcome)
		}
	}
}

// synced returns the result of a sync of the default branch for an app.
func synced(t testing.TB, id, app, repo string) events.Result {
	return events.Result{
		ID: id, Type: events.ResultSynced, Source: "/lockstep/worker/w1", Time: time.Now().UTC(), Repo: must(events.ParseRepoPath(repo))(t), App: app,
		Ref: must(events.ParseRef("main"))(t), After: fmt.Sprintf("%040x", len(id)), Path: repo, Tree: ".lockstep/x",
		Files: []events.File{{Path: "a.txt", Status: events.FileAdded}},
	}
}

func (w *world) publish(results ...events.Result) {
	w.t.Helper()
	publisher := must(stream.NewPublisher(stream.PublisherConfig{Client: w.redis}, nil))(w.t)
	for _, r := range results {
		must(0, publisher.Publish(namespace.Results(), must(changes.ResultMessage(r))(w.t)))(w.t)
	}
}

// claimDue claims what is due, as a process without posts in flight.
func (w *world) claimDue(n *Notifier) []claim {
	w.t.Helper()
	claims, _, err := n.outbox.claim(w.t.Context(), nil, n.cfg.limits)
	if err != nil {
		w.t.Fatal(err)
	}
	return claims
}

// claimOne claims the only item that is due.
func (w *world) claimOne(n *Notifier) claim {
	w.t.Helper()
	claims := w.claimDue(n)
	if len(claims) != 1 {
		w.t.Fatalf("%d claims", len(claims))
	}
	return claims[0]
}

// settle settles a claim, and reports whether it was held.
func (w *world) settle(n *Notifier, c claim, s settlement) bool {
	w.t.Helper()
	return must(n.outbox.settle(w.t.Context(), c, s))(w.t)
}

func (w *world) waiting() int64 { return must(Waiting(w.t.Context(), w.redis, namespace))(w.t) }

func (w *world) dead() *stream.DeadLetters {
	return stream.NewDeadLetters(w.redis, "")
}

// letters returns the dead letters, oldest first.
func (w *world) letters() []stream.Letter {
	w.t.Helper()
	letters, _, err := w.dead().List(w.t.Context(), stream.Query{Oldest: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return letters
}

// awaitLetters waits until there are n dead letters.
func (w *world) awaitLetters(n int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for last := "0"; n > 0; {
		read, err := w.redis.XRead(ctx, &redis.XReadArgs{Streams: []string{namespace.Dead(), last}, Count: 1, Block: time.Second}).Result()
		switch {
		case ctx.Err() != nil:
			w.t.Fatalf("%d letters are missing", n)
		case err == nil:
			last, n = read[0].Messages[0].ID, n-1
		case !errors.Is(err, redis.Nil):
			w.t.Fatal(err)
		}
	}
}

// everything returns all text stored in Redis.
func (w *world) everything() string {
	w.t.Helper()
	ctx := w.t.Context()
	var b strings.Builder
	for _, key := range must(w.redis.Keys(ctx, "*").Result())(w.t) {
		var value any
		switch kind := must(w.redis.Type(ctx, key).Result())(w.t); kind {
		case "string":
			value = w.redis.Get(ctx, key).Val()
		case "hash":
			value = w.redis.HGetAll(ctx, key).Val()
		case "list":
			value = w.redis.LRange(ctx, key, 0, -1).Val()
		case "zset":
			value = w.redis.ZRange(ctx, key, 0, -1).Val()
		case "stream":
			value = w.redis.XRange(ctx, key, "-", "+").Val()
		default:
			w.t.Fatalf("%s is a %s", key, kind)
		}
		fmt.Fprintf(&b, "%s %s\n", key, must(json.Marshal(value))(w.t))
	}
	return b.String()
}
