package e2e

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

const (
	modelSecret = "the secret of the model's forge"
	firstToken  = "t0ken-of-docs-and-search"
	secondToken = "t0ken-of-scan"
)

// modelApps has the credential of each app.
var modelApps = map[string]string{"docs": "one", "search": "one", "scan": "two"}

// model has the expected state, and the system under test.
type model struct {
	t        *testing.T
	git      *gitserver.Server
	server   *redistest.Server
	client   redis.UniversalClient
	registry *watch.Registry
	root     string
	hooks    string // URL for webhooks
	seed     uint64
	random   *rand.Rand

	repos      []*modelRepo
	deliveries int
	lost       int            // webhooks not sent
	counts     map[string]int // by kind of step
}

// modelRepo is a repository on the forge.
type modelRepo struct {
	path    string
	exists  bool // on the forge
	dev     bool // has a branch dev
	watches map[watch.Key]bool
	moving  string // former path, until the rename is processed
	pushes  int
}

// TestDiskStateAndRegistryMatchModel pushes, renames, deletes, watches and unwatches repositories at random, while some
// webhooks are lost and workers are killed with SIGKILL. After two reconciliations, the volume, the state and the registry
// must match the model, and no token may be stored anywhere.
func TestDiskStateAndRegistryMatchModel(t *testing.T) {
	t.Parallel()
	repos, watches, steps, kills := testenv.Form(8, 20), testenv.Form(25, 60), testenv.Form(40, 80), testenv.Form(2, 4)
	if testenv.Soaking() {
		repos, watches, steps, kills = 200, 1000, 2000, 60
	}
	m := newModel(t)
	m.create(repos)
	m.watch(watches)

	killing, stop := context.WithCancel(t.Context())
	defer stop()
	var killer errgroup.Group
	killer.Go(func() error { return m.killWorkers(killing, kills) })
	for range steps {
		m.step()
	}
	proctest.Must(0, killer.Wait())(t)
	t.Logf("%d deliveries, %d lost, %v", m.deliveries, m.lost, m.counts)

	m.awaitQuiet()
	m.reconcileAll()
	m.ageMissing()
	m.reconcileAll()
	m.assertRegistry()
	m.assertDisk()
	m.assertState()
	m.assertNoToken()
	for _, found := range m.reconcile().Findings {
		if unsettled := found.Kind == schedule.Drift && strings.HasSuffix(found.Detail, "not in the state"); unsettled {
			continue
		}
		if found.Kind != schedule.NeverSynced || m.hasWatchedRef(found) {
			t.Errorf("the second reconciliation finds %+v", found)
		}
	}
}

func newModel(t *testing.T) *model {
	t.Helper()
	seed := testenv.Seed(t)
	m := &model{
		t: t, git: proctest.StartGit(t), server: redistest.Start(t, durable...), root: t.TempDir(),
		seed: seed, random: rand.New(rand.NewPCG(seed, 2)), counts: map[string]int{},
	}
	m.client = m.server.Client()
	m.registry = watch.NewRegistry(m.client, events.DefaultNamespace)
	address := proctest.FreeAddress(t)
	m.hooks = "http://" + address + "/hooks/forge"
	receiver := proctest.Command(t, "serve", "--roles", "receiver", "--listen", address, "--redis", m.server.URL(), "--spool", t.TempDir(), "--log-level", "warn")
	receiver.Env = append(os.Environ(), "LOCKSTEP_HOOK_FORGE_FORGE=github", "LOCKSTEP_HOOK_FORGE_SECRET="+modelSecret)
	proctest.StartCommand(t, receiver)
	proctest.Eventually(t, func() bool {
		resp, err := http.Get("http://" + address + "/readyz")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	}, "the receiver is ready")
	return m
}

// serve starts a worker.
func (m *model) serve(name string) *proctest.Process {
	cmd := proctest.Command(m.t, "serve", "--roles", "worker,scheduler", "--redis", m.server.URL(), "--root", m.root, "--worker", name, "--lease", "1s", "--lock-wait", "20s",
		"--tree-grace", "1s", "--hosts", "127.0.0.1", "--max-attempts", "100", "--log-level", "warn")
	cmd.Env = append(os.Environ(),
		"LOCKSTEP_CREDENTIAL_ONE_PASSWORD="+firstToken, "LOCKSTEP_CREDENTIAL_ONE_URLS="+m.git.URL("")[:len(m.git.URL(""))-len("/.git")]+"/",
		"LOCKSTEP_CREDENTIAL_TWO_PASSWORD="+secondToken, "LOCKSTEP_CREDENTIAL_TWO_URLS="+m.git.URL("")[:len(m.git.URL(""))-len("/.git")]+"/")
	return proctest.StartCommand(m.t, cmd)
}

// killWorkers runs two workers and kills and replaces them the given number of times. Then it starts the last one.
func (m *model) killWorkers(ctx context.Context, times int) error {
	var both errgroup.Group
	for n := range 2 {
		both.Go(func() error {
			random := rand.New(rand.NewPCG(m.seed, uint64(3+n)))
			for i := range times / 2 {
				p := m.serve(fmt.Sprintf("w%d-%d", n, i))
				redisx.Pause(ctx, 500*time.Millisecond+time.Duration(random.IntN(2000))*time.Millisecond) // at a random time
				p.Kill()
			}
			return nil
		})
	}
	err := both.Wait()
	m.serve("last")
	return err
}

func (m *model) create(n int) {
	for i := range n {
		r := &modelRepo{path: fmt.Sprintf("acme/r%03d", i), exists: true, watches: map[watch.Key]bool{}}
		proctest.Must(m.git.CreateAs(m.t.Context(), m.format(), r.path, map[string]string{"README": r.path, "stays": "the same"}))(m.t)
		m.git.AcceptTokens(r.path, firstToken, secondToken)
		m.repos = append(m.repos, r)
	}
}

// format returns an object format for a new repository.
func (m *model) format() string { return []string{"sha1", "sha256"}[m.random.IntN(2)] }

// watch adds n watches of the default branch or the branch dev.
func (m *model) watch(n int) {
	var all []watch.Watch
	for made := 0; made < n; {
		r := m.repos[made%len(m.repos)]
		w := m.newWatch(r)
		if r.watches[w.Key()] {
			r = m.repos[m.random.IntN(len(m.repos))]
			if w = m.newWatch(r); r.watches[w.Key()] {
				continue
			}
		}
		r.watches[w.Key()] = true
		all = append(all, w)
		made++
	}
	proctest.Must(m.registry.Put(m.t.Context(), all...))(m.t)
}

func (m *model) newWatch(r *modelRepo) watch.Watch {
	apps := []string{"docs", "search", "scan"}
	app := apps[m.random.IntN(len(apps))]
	var ref watch.Selector
	if m.random.IntN(3) == 0 {
		ref = proctest.Must(watch.ParseSelector("dev"))(m.t)
	}
	repo := proctest.Must(events.ParseRepoPath(r.path))(m.t)
	return proctest.Must(watch.New(watch.Watch{App: app, Repo: repo, URL: m.git.URL(r.path), Ref: ref, Credential: modelApps[app]}))(m.t)
}

// step performs a random operation.
func (m *model) step() {
	r := m.repos[m.random.IntN(len(m.repos))]
	what := m.random.IntN(100)
	switch {
	case !r.exists:
		m.settleMove(r)
		m.recreate(r)
	case what < 55:
		m.push(r)
	case what < 65:
		m.toggleDev(r)
	case what < 72:
		m.settleMove(r)
		m.rename(r)
	case what < 76:
		m.settleMove(r)
		m.remove(r)
	case what < 88:
		m.settleMove(r)
		m.unwatch(r)
	default:
		m.settleMove(r)
		m.rewatch(r)
	}
}

func (m *model) push(r *modelRepo) {
	m.counts["push"]++
	r.pushes++
	branch := gitserver.Main
	if r.dev && m.random.IntN(2) == 0 {
		branch = "dev"
	}
	before := m.git.Head(r.path, "refs/heads/"+branch)
	commit := proctest.Must(m.git.Commit(m.t.Context(), r.path, branch, gitserver.Edit{Write: map[string]string{"n": fmt.Sprint(r.pushes)}}))(m.t)
	m.deliver("push", map[string]any{"ref": "refs/heads/" + branch, "before": before, "after": commit, "repository": m.repository(r)}, true)
}

func (m *model) toggleDev(r *modelRepo) {
	zero := strings.Repeat("0", 40)
	if r.dev {
		m.counts["branch deleted"]++
		before := m.git.Head(r.path, "refs/heads/dev")
		proctest.Must(0, m.git.DeleteRef(m.t.Context(), r.path, "refs/heads/dev"))(m.t)
		m.deliver("push", map[string]any{"ref": "refs/heads/dev", "before": before, "after": zero, "deleted": true, "repository": m.repository(r)}, true)
	} else {
		m.counts["branch created"]++
		head := m.git.Head(r.path, "refs/heads/"+gitserver.Main)
		proctest.Must(0, m.git.SetRef(m.t.Context(), r.path, "refs/heads/dev", head))(m.t)
		m.deliver("push", map[string]any{"ref": "refs/heads/dev", "before": zero, "after": head, "created": true, "repository": m.repository(r)}, true)
	}
	r.dev = !r.dev
}

func (m *model) rename(r *modelRepo) {
	m.counts["rename"]++
	old := r.path
	_, name, _ := strings.Cut(old, "/")
	base, _, _ := strings.Cut(r.path, ".")
	r.path = fmt.Sprintf("%s.%d", base, m.counts["rename"])
	proctest.Must(0, m.git.Rename(old, r.path))(m.t)
	m.git.AcceptTokens(r.path, firstToken, secondToken)
	moved := map[watch.Key]bool{}
	to := proctest.Must(events.ParseRepoPath(r.path))(m.t)
	for key := range r.watches {
		key.Repo = to
		moved[key] = true
	}
	r.watches = moved
	if len(moved) > 0 {
		r.moving = old
	}
	m.deliver("repository", map[string]any{"action": "renamed", "repository": m.repository(r),
		"changes": map[string]any{"repository": map[string]any{"name": map[string]any{"from": name}}}}, false)
}

// settleMove waits until the watches of a renamed repository have moved. A change of watches before that would apply to the
// old path. A change that waits for a permit while a worker is killed comes by itself after at most 90 s.
func (m *model) settleMove(r *modelRepo) {
	if r.moving == "" {
		return
	}
	old := proctest.Must(events.ParseRepoPath(r.moving))(m.t)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		set, err := m.registry.Of(m.t.Context(), old)
		if err == nil && len(set.Watches) == 0 {
			break
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the watches of %s have not moved to %s:\n%s", r.moving, r.path, m.history(r.moving))
		}
	}
	r.moving = ""
}

func (m *model) remove(r *modelRepo) {
	m.counts["deleted"]++
	proctest.Must(0, m.git.Delete(r.path))(m.t)
	r.exists, r.dev = false, false
	m.deliver("repository", map[string]any{"action": "deleted", "repository": m.repository(r)}, false)
}

func (m *model) recreate(r *modelRepo) {
	m.counts["recreated"]++
	commit := proctest.Must(m.git.CreateAs(m.t.Context(), m.format(), r.path, map[string]string{"README": "again"}))(m.t)
	r.exists = true
	m.deliver("push", map[string]any{"ref": "refs/heads/main", "before": strings.Repeat("0", 40), "after": commit, "repository": m.repository(r)}, true)
}

func (m *model) unwatch(r *modelRepo) {
	m.counts["unwatch"]++
	keys := slices.Collect(keysOf(r.watches, m.random.IntN(4) != 0))
	proctest.Must(m.registry.Remove(m.t.Context(), keys...))(m.t)
	for _, key := range keys {
		delete(r.watches, key)
	}
}

// keysOf yields all keys, or every other one.
func keysOf(watches map[watch.Key]bool, all bool) func(yield func(watch.Key) bool) {
	return func(yield func(watch.Key) bool) {
		n := 0
		for key := range watches {
			if n++; !all && n%2 == 0 {
				continue
			}
			if !yield(key) {
				return
			}
		}
	}
}

func (m *model) rewatch(r *modelRepo) {
	m.counts["watch"]++
	w := m.newWatch(r)
	proctest.Must(m.registry.Put(m.t.Context(), w))(m.t)
	r.watches[w.Key()] = true
}

func (m *model) repository(r *modelRepo) map[string]any {
	_, name, _ := strings.Cut(r.path, "/")
	return map[string]any{"name": name, "full_name": r.path, "clone_url": m.git.URL(r.path), "default_branch": "main", "owner": map[string]any{"login": "acme"}}
}

// deliver posts a signed webhook as GitHub does. If mayBeLost, it drops one of ten.
func (m *model) deliver(event string, payload map[string]any, mayBeLost bool) {
	m.t.Helper()
	if mayBeLost && m.random.IntN(10) == 0 {
		m.lost++
		return
	}
	m.deliveries++
	body := proctest.Must(json.Marshal(payload))(m.t)
	mac := hmac.New(sha256.New, []byte(modelSecret))
	mac.Write(body)
	req := proctest.Must(http.NewRequestWithContext(m.t.Context(), http.MethodPost, m.hooks, bytes.NewReader(body)))(m.t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", event)
	req.Header.Set("X-GitHub-Delivery", fmt.Sprintf("delivery-%d", m.deliveries))
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	resp := proctest.Must(http.DefaultClient.Do(req))(m.t)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		var answer bytes.Buffer
		_, _ = answer.ReadFrom(resp.Body)
		m.t.Fatalf("delivery %d (%s): response %s: %s", m.deliveries, event, resp.Status, answer.String())
	}
}

// awaitQuiet waits until no change is waiting or in progress.
func (m *model) awaitQuiet() {
	m.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !isQuiet(m.t.Context(), m.client); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("not all changes are settled: %s", m.unsettled())
		}
	}
}

// unsettled describes the changes that are waiting or in progress, and the states of their repositories.
func (m *model) unsettled() string {
	ctx, topic := m.t.Context(), events.DefaultNamespace.Changes()
	figures, err := stream.Stats(ctx, m.client, string(events.DefaultNamespace), topic)
	lines := []string{fmt.Sprintf("%+v %v, %d awaited", figures, err, awaited(ctx, m.client))}
	pending := m.client.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: topic, Group: events.WorkersGroup, Start: "-", End: "+", Count: 100}).Val()
	for _, entry := range pending {
		for _, one := range m.client.XRange(ctx, topic, entry.ID, entry.ID).Val() {
			lines = append(lines, fmt.Sprintf("%+v %v", entry, one.Values))
			change, err := stream.DefaultMarshallerUnmarshaller{}.Unmarshal(one.Values)
			if err == nil {
				lines = append(lines, fmt.Sprint(change.Metadata))
			}
		}
	}
	for _, key := range m.client.Keys(ctx, string(events.DefaultNamespace)+"*repo:*").Val() {
		lines = append(lines, fmt.Sprint(key, " ", m.client.HGetAll(ctx, key).Val()))
	}
	return strings.Join(lines, "\n")
}

// reconcileAll reconciles until no poll was skipped because the repository was busy, for example with its garbage collection. Waiting
// for its next poll would take too long.
func (m *model) reconcileAll() {
	m.t.Helper()
	for {
		before := m.skipped()
		m.reconcile()
		m.awaitQuiet()
		if m.skipped() == before {
			return
		}
	}
}

// ageMissing makes the refs that the last polls have missed missing for longer than ten minutes, as their files say.
func (m *model) ageMissing() {
	m.t.Helper()
	missing := regexp.MustCompile(`(?m)^ \d+ `)
	files := proctest.Must(filepath.Glob(filepath.Join(m.root, ".lockstep/repos/*/*/listed")))(m.t)
	for _, file := range files {
		content := proctest.Must(os.ReadFile(file))(m.t)
		aged := fmt.Sprintf(" %d ", time.Now().Add(-time.Hour).UnixNano())
		proctest.Must(0, os.WriteFile(file, missing.ReplaceAll(content, []byte(aged)), 0o644))(m.t)
	}
}

// skipped counts the skipped polls.
func (m *model) skipped() (n int) {
	for _, entry := range proctest.Must(m.client.XRange(m.t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(m.t) {
		if strings.Contains(fmt.Sprint(entry.Values["payload"]), `"class":"busy"`) {
			n++
		}
	}
	return n
}

func (m *model) reconcile() schedule.Report {
	m.t.Helper()
	stdout, stderr, code := proctest.RunLockstep(m.t, nil, "reconcile", "--json", "--redis", m.server.URL(), "--root", m.root)
	var report schedule.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 {
		m.t.Fatalf("reconcile: exit code %d, %v\n%s", code, err, stderr)
	}
	return report
}

func (m *model) assertRegistry() {
	m.t.Helper()
	watched := map[watch.Key]bool{}
	for q := (watch.Query{Limit: 1000}); ; {
		page := proctest.Must(m.registry.List(m.t.Context(), q))(m.t)
		for _, w := range page.Watches {
			watched[w.Key()] = true
			if w.URL != m.git.URL(w.Repo.String()) {
				m.t.Errorf("%v has URL %s, want %s", w.Key(), w.URL, m.git.URL(w.Repo.String()))
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	for _, r := range m.repos {
		for key := range r.watches {
			if !watched[key] {
				m.t.Errorf("%v is not in the registry", key)
			}
			delete(watched, key)
		}
	}
	for key := range watched {
		m.t.Errorf("%v is in the registry, want it removed", key)
	}
}

// hasWatchedRef reports whether a watch of the app in a NeverSynced finding selects a ref that exists.
func (m *model) hasWatchedRef(found schedule.Finding) bool {
	app, _, _ := strings.Cut(found.Detail, " ")
	for _, r := range m.repos {
		for key := range r.watches {
			if key.App == app && key.Repo == found.Repo && r.exists && (key.Ref.IsDefault() || r.dev) {
				return true
			}
		}
	}
	return false
}

// published returns the expected commit of each published name: the path, with the ref unless it is the default.
func (m *model) published() map[string]string {
	names := map[string]string{}
	for _, r := range m.repos {
		for key := range r.watches {
			name, branch := r.path, gitserver.Main
			if !key.Ref.IsDefault() {
				name, branch = r.path+"@dev", "dev"
			}
			if head := m.git.Head(r.path, "refs/heads/"+branch); r.exists && head != "" {
				names[name] = head
			}
		}
	}
	return names
}

// assertDisk compares the published names with the model, within the grace period for replaced ones.
func (m *model) assertDisk() {
	m.t.Helper()
	want := m.published()
	var diff []string
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		diff = nil
		found := m.names()
		for name, commit := range want {
			if found[name] != commit {
				diff = append(diff, fmt.Sprintf("%s is at %.12q, want %.12s", name, found[name], commit))
			}
			delete(found, name)
		}
		for name := range found {
			if !m.isUnsettled(name) {
				diff = append(diff, name+" is published, want it removed")
			}
		}
		if len(diff) == 0 || time.Now().After(deadline) {
			break
		}
	}
	slices.Sort(diff)
	if len(diff) > 0 {
		name, _, _ := strings.Cut(diff[0], " ")
		path, _, _ := strings.Cut(name, "@")
		m.t.Errorf("%d of %d names differ:\n%s\n%s", len(diff), len(want), strings.Join(diff[:min(len(diff), 20)], "\n"), m.history(path))
	}
	stdout, stderr, code := proctest.RunLockstep(m.t, nil, "repos", "verify", "--all", "--redis", m.server.URL(), "--root", m.root)
	if code != 0 {
		m.t.Errorf("verify: exit code %d\n%s%s", code, proctest.Tail(stdout, 2000), stderr)
	}
}

// isUnsettled reports whether the state knows nothing of a published name: a worker died after publishing it, and the change then failed, as
// when the repository was renamed meanwhile. It stays, since it may be one that somebody asked for and whose state is lost; reconcile reports it.
func (m *model) isUnsettled(name string) bool {
	path, ref, _ := strings.Cut(name, "@")
	if ref == "" {
		return false
	}
	known := proctest.Must(state.NewStore(m.client, events.DefaultNamespace).Load(m.t.Context(), proctest.Must(events.ParseRepoPath(path))(m.t)))(m.t)
	return known.Head(proctest.Must(events.ParseRef(ref))(m.t)) == ""
}

// history returns the changes and results of a repository, for failure messages.
func (m *model) history(path string) string {
	var lines []string
	for _, topic := range []string{events.DefaultNamespace.Changes(), events.DefaultNamespace.Results()} {
		for _, entry := range proctest.Must(m.client.XRange(m.t.Context(), topic, "-", "+").Result())(m.t) {
			if text := fmt.Sprint(entry.Values["payload"]); strings.Contains(text, `"subject":"`+path+`"`) {
				lines = append(lines, entry.ID+" "+text)
			}
		}
	}
	slices.Sort(lines)
	for _, r := range m.repos {
		if r.path == path {
			lines = append(lines, fmt.Sprintf("%+v", *r))
		}
	}
	return strings.Join(lines, "\n")
}

// names returns the commit of each published name.
func (m *model) names() map[string]string {
	names := map[string]string{}
	for _, link := range proctest.Must(filepath.Glob(filepath.Join(m.root, "acme", "*")))(m.t) {
		head, err := os.ReadFile(filepath.Join(link, ".git", "lockstep-commit"))
		if err != nil {
			continue // just removed
		}
		names["acme/"+filepath.Base(link)] = strings.TrimSpace(string(head))
	}
	return names
}

// dumpKey returns the content of a key as text.
func dumpKey(t *testing.T, client redis.UniversalClient, key string) string {
	t.Helper()
	ctx := t.Context()
	var all any
	var err error
	switch kind := proctest.Must(client.Type(ctx, key).Result())(t); kind {
	case "string":
		all, err = client.Get(ctx, key).Result()
	case "hash":
		all, err = client.HGetAll(ctx, key).Result()
	case "zset":
		all, err = client.ZRange(ctx, key, 0, -1).Result()
	case "set":
		all, err = client.SMembers(ctx, key).Result()
	case "list":
		all, err = client.LRange(ctx, key, 0, -1).Result()
	case "stream":
		all, err = client.XRange(ctx, key, "-", "+").Result()
	case "none": // just removed
	default:
		t.Fatalf("key %s is a %s", key, kind)
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return fmt.Sprint(all)
}

func (m *model) assertState() {
	m.t.Helper()
	states := state.NewStore(m.client, events.DefaultNamespace)
	for _, r := range m.repos {
		known := proctest.Must(states.Load(m.t.Context(), proctest.Must(events.ParseRepoPath(r.path))(m.t)))(m.t)
		heads := map[string]string{}
		for key := range r.watches {
			branch := gitserver.Main
			if !key.Ref.IsDefault() {
				branch = "dev"
			}
			ref := proctest.Must(events.ParseRef(branch))(m.t)
			head := m.git.Head(r.path, ref.String())
			if !r.exists || head == "" {
				continue
			}
			heads[ref.String()] = head
			if given := known.Given(key.App, ref); given != head {
				m.t.Errorf("%s: %s of %s: last given %.12q, want %.12s", key.App, ref, r.path, given, head)
			}
		}
		for ref, head := range heads {
			if known.Heads()[ref] != head {
				m.t.Errorf("%s of %s: head %.12q in the state, want %.12s", ref, r.path, known.Heads()[ref], head)
			}
		}
		for ref, head := range known.Heads() {
			if heads[ref] == "" {
				m.t.Errorf("%s of %s: head %.12s in the state, want none", ref, r.path, head)
			}
		}
		if cloned := r.exists && len(r.watches) > 0; !cloned && !known.Synced().IsZero() {
			m.t.Errorf("%s is synced according to the state, want it removed", r.path)
		}
	}
}

// assertNoToken checks that neither Redis nor the volume contains a token or the secret.
func (m *model) assertNoToken() {
	m.t.Helper()
	secrets := []string{firstToken, secondToken, modelSecret}
	holds := func(content []byte) bool {
		return slices.ContainsFunc(secrets, func(s string) bool { return bytes.Contains(content, []byte(s)) })
	}
	var found sync.Map
	proctest.Must(0, filepath.WalkDir(m.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // just removed
		}
		if content, err := os.ReadFile(path); err == nil && holds(content) {
			found.Store(path, true)
		}
		return nil
	}))(m.t)
	for _, key := range proctest.Must(m.client.Keys(m.t.Context(), "*").Result())(m.t) {
		if holds([]byte(dumpKey(m.t, m.client, key))) {
			found.Store("key "+key, true)
		}
	}
	found.Range(func(where, _ any) bool { m.t.Errorf("%v contains a secret", where); return true })
}
