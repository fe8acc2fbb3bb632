package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/schedule"
	"lockstep/internal/watch"
	"lockstep/tree"
)

// outage is a deployment that loses its Redis under load: workers, a notifier and a reader, an app that is notified, and one that consumes
// the stream of results with its own group.
type outage struct {
	*testing.T
	git      *gitserver.Server
	meter    *gitserver.Meter
	server   *redistest.Server
	client   redis.UniversalClient
	root     string
	repos    []string
	notified *notificationLog
	consumed *consumer
	secret   string // token of docs
	reader   string // URL
	reads    atomic.Int64
	pushes   int
}

const (
	cloneBytes = 200_000 // at least, of one repository
	oneHost    = 2       // requests of a worker at a time
	workers    = 2
)

func newOutage(t *testing.T) *outage {
	t.Helper()
	o := &outage{
		T: t, git: proctest.StartGit(t), server: redistest.StartReal(t), root: t.TempDir(),
		notified: &notificationLog{consumer: consumer{received: map[string][]events.Result{}}},
	}
	o.client, o.meter = o.server.Client(), proctest.Must(o.git.StartMeter())(t)
	t.Cleanup(o.meter.Close)
	receiver := httptest.NewServer(o.notified)
	t.Cleanup(receiver.Close)
	random := make([]byte, cloneBytes)
	var watches []watch.Watch
	for i := range 8 {
		repo := fmt.Sprintf("acme/repo-%d", i)
		_, _ = rand.Read(random)
		proctest.Must(o.git.Create(t.Context(), repo, map[string]string{"stays": repo, "large": hex.EncodeToString(random), "version": "0"}))(t)
		o.repos = append(o.repos, repo)
		watches = append(watches, watch.Watch{App: "docs", URL: o.meter.URL(repo)},
			watch.Watch{App: "ci", URL: o.meter.URL(repo), NotifyURL: receiver.URL, NotifySecret: "signer"})
	}
	proctest.Must(watch.NewRegistry(o.client, events.DefaultNamespace).Put(t.Context(), watches...))(t)
	_, secret, err := access.NewTokens(o.client, events.DefaultNamespace).Create(t.Context(), "docs")
	o.secret = proctest.Must(secret, err)(t)
	o.consumed = o.consume()
	o.serve(receiver.URL)
	o.awaitHeads()
	o.read()
	return o
}

// where returns the flags of commands.
func (o *outage) where() []string { return []string{"--redis", o.server.URL(), "--root", o.root} }

func (o *outage) serve(notify string) {
	o.Helper()
	for range workers {
		proctest.Start(o.T, append([]string{"serve", "--roles", "worker,scheduler", "--lease", "1s", "--host-requests", fmt.Sprint(oneHost), "--log-level", "error"}, o.where()...)...)
	}
	cmd := proctest.Command(o.T, "serve", "--roles", "notifier", "--redis", o.server.URL(), "--notify-hosts", "127.0.0.1", "--log-level", "error")
	cmd.Env = append(os.Environ(), "LOCKSTEP_CREDENTIAL_SIGNER_SIGNING_SECRET=s3cret-of-24-characters", "LOCKSTEP_CREDENTIAL_SIGNER_URLS="+notify+"/")
	proctest.StartCommand(o.T, cmd)
	address := proctest.FreeAddress(o.T)
	proctest.Start(o.T, append([]string{"serve", "--roles", "reader", "--listen", address}, o.where()...)...).AwaitLog("listening")
	o.reader = "http://" + address
}

// push commits to a repository and announces that, unless Redis is gone.
func (o *outage) push(repo string) {
	o.Helper()
	o.pushes++
	commit := proctest.Must(o.git.Commit(o.Context(), repo, gitserver.Main, gitserver.Edit{Write: map[string]string{"version": fmt.Sprint(o.pushes)}}))(o.T)
	for _, to := range []string{"docs", "ci"} {
		change := proctest.Must(events.NewChange(events.Change{ID: uuid.NewString(), Source: "/test", URL: o.meter.URL(repo), App: to, After: commit}))(o.T)
		_ = app.PublishChange(o.Context(), o.client, events.DefaultNamespace, change)
	}
}

// read opens each repository in turn until the end of the test, with package tree and with lockstep exec. Every read must succeed.
func (o *outage) read() {
	ctx, stop := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			repo := o.repos[n%len(o.repos)]
			opened, err := tree.Open(o.root, repo)
			if err == nil {
				var content []byte
				content, err = os.ReadFile(filepath.Join(opened.Dir(), "stays"))
				if err == nil && string(content) != repo {
					err = fmt.Errorf("read %q", content)
				}
				_ = opened.Close()
			}
			if err != nil {
				o.Errorf("%s cannot be read: %v", repo, err)
				return
			}
			o.reads.Add(1)
			redisx.Pause(ctx, 5*time.Millisecond)
		}
	})
	reading.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			repo := o.repos[n%len(o.repos)]
			if out, err := exec.CommandContext(ctx, "lockstep", "exec", repo, "--root", o.root, "--", "cat", "stays").CombinedOutput(); ctx.Err() == nil && (err != nil || string(out) != repo) {
				o.Errorf("lockstep exec %s: %v: %s", repo, err, out)
				return
			}
			redisx.Pause(ctx, 200*time.Millisecond)
		}
	})
	o.Cleanup(func() { stop(); reading.Wait() })
}

// awaitHeads waits until each repository is published at its head, and no change waits.
func (o *outage) awaitHeads() {
	o.Helper()
	for _, repo := range o.repos {
		head := o.git.Head(repo, "refs/heads/main")
		proctest.Eventually(o.T, func() bool { return o.published(repo) == head }, "%s is at its head", repo)
	}
	proctest.Eventually(o.T, func() bool { return isQuiet(context.Background(), o.client) }, "all changes are settled")
}

func (o *outage) published(repo string) string {
	opened, err := tree.Open(o.root, repo)
	if err != nil {
		return ""
	}
	defer opened.Close()
	return opened.Commit()
}

// awaitApps waits until both apps have the head of each repository.
func (o *outage) awaitApps() {
	o.Helper()
	for _, repo := range o.repos {
		head := o.git.Head(repo, "refs/heads/main")
		proctest.Eventually(o.T, func() bool { return o.notified.have("ci", repo) == head }, "ci is notified of the head of %s", repo)
		proctest.Eventually(o.T, func() bool { return o.consumed.have("docs", repo) == head }, "docs has consumed the head of %s", repo)
	}
}

// lose kills Redis with all its data after some more pushes, pushes to the first repositories meanwhile, and returns the trees that were
// published, by repository.
func (o *outage) lose() (trees map[string]string) {
	o.Helper()
	for n := range 40 {
		o.push(o.repos[n%len(o.repos)])
	}
	o.server.Stop()
	o.consumed.mark(o.T)
	for _, repo := range o.repos[:3] {
		o.push(repo)
	}
	reads := o.reads.Load()
	proctest.Eventually(o.T, func() bool { return o.reads.Load() > reads+100 }, "trees are read while Redis is gone")
	trees = map[string]string{}
	for _, repo := range o.repos {
		trees[repo] = proctest.Must(os.Readlink(filepath.Join(o.root, repo)))(o.T)
	}
	o.meter.Take()
	o.server.Restart()
	return trees
}

// assertKept checks that no tree was deleted, nothing was cloned again, no request exceeded the host's budget, and nothing is left to do.
func (o *outage) assertKept(trees map[string]string) {
	o.Helper()
	if n := o.meter.Take(); n >= cloneBytes {
		o.Errorf("%d bytes were exchanged with the host, a clone has %d or more", n, cloneBytes)
	} else {
		o.Logf("%d bytes were exchanged with the host for %d repositories; one clone has %d or more", n, len(o.repos), cloneBytes)
	}
	for repo, link := range trees {
		if _, err := os.Stat(filepath.Join(o.root, filepath.Dir(repo), link)); err != nil {
			o.Errorf("a tree of %s was deleted: %v", repo, err)
		}
		if stores := proctest.Must(os.ReadDir(filepath.Join(o.root, ".lockstep/repos", repo, "stores")))(o.T); len(stores) != 1 {
			o.Errorf("%s has %d stores, want the first one", repo, len(stores))
		}
	}
	if n := o.git.MaxRepos(); n > workers*oneHost {
		o.Errorf("%d repositories were fetched at a time, want at most %d", n, workers*oneHost)
	}
	o.consumed.mu.Lock()
	for _, r := range o.consumed.bad {
		o.Errorf("%s: %s %s", r.Repo, r.Type, r.Error)
	}
	o.consumed.mu.Unlock()
	if report := o.reconcile(); len(report.Findings) > 0 || report.Watched != len(o.repos) {
		o.Errorf("reconcile: %+v", report)
	}
}

func (o *outage) reconcile() (report schedule.Report) {
	o.Helper()
	stdout, stderr, code := proctest.RunLockstep(o.T, nil, append([]string{"reconcile", "--json"}, o.where()...)...)
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 {
		o.Fatalf("reconcile: exit code %d, %v\n%s", code, err, stderr)
	}
	return report
}

// awaitListed waits for the status with which the token is answered, and for how many repositories it reads.
func (o *outage) awaitListed(want, status int) {
	o.Helper()
	var n, got int
	proctest.Eventually(o.T, func() bool { n, got = o.listed(); return n == want && got == status },
		"the token reads %d repositories with status %d; it reads %v with %v", want, status, &n, &got)
}

// listed returns how many repositories the token reads, or the status of the response.
func (o *outage) listed() (repos, status int) {
	o.Helper()
	request := proctest.Must(http.NewRequestWithContext(o.Context(), http.MethodGet, o.reader+"/api/v1/repos", nil))(o.T)
	request.Header.Set("Authorization", "Bearer "+o.secret)
	response := proctest.Must(http.DefaultClient.Do(request))(o.T)
	defer response.Body.Close()
	var list struct{ Repos []json.RawMessage }
	_ = json.Unmarshal(proctest.Must(io.ReadAll(response.Body))(o.T), &list)
	return len(list.Repos), response.StatusCode
}

// consumer reads results with a consumer group, which it creates again if Redis has lost it.
type consumer struct {
	fails    atomic.Int64 // reads that returned nothing
	mu       sync.Mutex
	received map[string][]events.Result // by app and repository
	lost     map[string]int             // results received when Redis was lost, by app and repository
	bad      []events.Result            // failures and removals
}

// notificationLog receives notifications, each once.
type notificationLog struct {
	consumer
	ids sync.Map
}

func (a *notificationLog) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	result, err := events.ParseResult(body)
	if _, duplicate := a.ids.LoadOrStore(r.Header.Get("webhook-id"), true); err == nil && !duplicate {
		a.add(result)
	}
}

// mark records that Redis is lost, once the last results that were read of it are added.
func (c *consumer) mark(t *testing.T) {
	t.Helper()
	fails := c.fails.Load()
	proctest.Eventually(t, func() bool { return c.fails.Load() > fails }, "a read of results fails")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = map[string]int{}
	for key, results := range c.received {
		c.lost[key] = len(results)
	}
}

func (o *outage) consume() *consumer {
	ctx, stop := context.WithCancel(context.Background())
	c := &consumer{received: map[string][]events.Result{}}
	client, results := o.server.Client(), events.DefaultNamespace.Results()
	_ = client.XGroupCreateMkStream(ctx, results, "copies", "0").Err()
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			read, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "copies", Consumer: "one", Streams: []string{results, ">"}, Count: 100, Block: 100 * time.Millisecond}).Result()
			if err != nil {
				c.fails.Add(1)
				if strings.HasPrefix(err.Error(), "NOGROUP") {
					_ = client.XGroupCreateMkStream(ctx, results, "copies", "0").Err()
				}
				redisx.Pause(ctx, 10*time.Millisecond)
				continue
			}
			for _, entry := range read[0].Messages {
				c.add(proctest.DecodeResult(o.T, entry))
				_ = client.XAck(ctx, results, "copies", entry.ID).Err()
			}
		}
	})
	o.Cleanup(func() { stop(); reading.Wait() })
	return c
}

func (c *consumer) add(r events.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch key := r.App + " " + r.Repo.String(); r.Type {
	case events.ResultSynced:
		c.received[key] = append(c.received[key], r)
	case events.ResultRemoved, events.ResultFailed:
		c.bad = append(c.bad, r)
	}
}

// since returns what an app has received of a repository since Redis was lost.
func (c *consumer) since(app, repo string) []events.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := app + " " + repo
	return slices.Clone(c.received[key][c.lost[key]:])
}

// all returns what was received.
func (c *consumer) all() map[string][]events.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.received)
}

// have returns the last commit of a repository that an app has received.
func (c *consumer) have(app, repo string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	results := c.received[app+" "+repo]
	if len(results) == 0 {
		return ""
	}
	return results[len(results)-1].After
}

// holes returns the results that an app cannot apply to anything that it had: those from a commit that it never received, and those without
// before, unless it is the first one, or the first of those that repeat. overlaps counts those from an older commit than its last one.
func holes(received map[string][]events.Result, repeats map[string]bool) (missing []string, overlaps int) {
	for key, results := range received {
		had, repeat := map[string]bool{}, repeats[key]
		for i, r := range results {
			switch {
			case i > 0 && r.Before == "" && repeat:
				repeat = false
			case i > 0 && !had[r.Before]:
				missing = append(missing, fmt.Sprintf("%s: %.12q to %.12s after %.12s", key, r.Before, r.After, results[i-1].After))
			case i > 0 && r.Before != results[i-1].After:
				overlaps++
			}
			had[r.After] = true
		}
	}
	return missing, overlaps
}
