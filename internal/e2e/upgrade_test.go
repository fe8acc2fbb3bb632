package e2e

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// TestUpgradeAndRollback runs the previous version next to this one, on one Redis and one volume.
func TestUpgradeAndRollback(t *testing.T) {
	testenv.Long(t)
	program, err := former(t.TempDir())
	if errors.Is(err, errNoHistory) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*testing.T, *fleet){
		"workers under load": upgradesUnderLoad, "webhooks and notifications": upgradesReceivers,
	} {
		t.Run(name, func(t *testing.T) { test(t, &fleet{t: t, former: program, dir: t.TempDir()}) })
	}
}

// former builds lockstep at the revision in LOCKSTEP_UPGRADE_FROM. By default that is HEAD if the work tree has changes, and
// otherwise the commit before.
func former(dir string) (program string, err error) {
	root, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return "", errNoHistory
	}
	revision := os.Getenv("LOCKSTEP_UPGRADE_FROM")
	if revision == "" {
		revision = "HEAD~1"
		if changed, err := git("-C", root, "status", "--porcelain", "--untracked-files=no"); err != nil || changed != "" {
			revision = "HEAD"
		}
	}
	if _, err := git("-C", root, "rev-parse", "--verify", "--quiet", revision+"^{commit}"); err != nil {
		return "", errNoHistory
	}
	if err := checkOut(root, revision, dir); err != nil {
		return "", err
	}
	program = filepath.Join(dir, "lockstep-former")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, "./cmd/lockstep") // with -trimpath, builds in other directories use the cache
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0")                                     // so do builds by make build
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", revision, err, out)
	}
	return program, nil
}

var errNoHistory = errors.New("no previous commit in this clone; set LOCKSTEP_UPGRADE_FROM to one that exists")

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	return strings.TrimSpace(string(out)), err
}

// checkOut writes the files of a revision to dir.
func checkOut(root, revision, dir string) error {
	archive := exec.Command("git", "-C", root, "archive", "--format=tar", revision)
	out, err := archive.StdoutPipe()
	if err != nil {
		return err
	}
	if err := archive.Start(); err != nil {
		return err
	}
	files := tar.NewReader(out)
	for {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			return archive.Wait()
		}
		if err != nil {
			return errors.Join(err, archive.Wait())
		}
		path := filepath.Join(dir, filepath.FromSlash(file.Name))
		switch file.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err != nil {
			return errors.Join(err, archive.Wait())
		}
	}
}

// fleet starts processes of two versions.
type fleet struct {
	t       *testing.T
	former  string
	dir     string
	started []*proctest.Process
}

// before starts a process of the previous version.
func (f *fleet) before(env []string, args ...string) *proctest.Process {
	f.t.Helper()
	cmd := exec.Command(f.former, args...)
	cmd.Dir = f.dir
	return f.start(cmd, env)
}

// now starts a process of this version.
func (f *fleet) now(env []string, args ...string) *proctest.Process {
	f.t.Helper()
	return f.start(proctest.Command(f.t, args...), env)
}

func (f *fleet) start(cmd *exec.Cmd, env []string) *proctest.Process {
	f.t.Helper()
	cmd.Env = append(os.Environ(), env...)
	p := proctest.StartCommand(f.t, cmd)
	f.started = append(f.started, p)
	return p
}

// assertQuiet checks that no process logged unknown or malformed data, or errors other than Redis outages and lost leases.
func (f *fleet) assertQuiet() {
	f.t.Helper()
	for _, p := range f.started {
		for line := range strings.Lines(p.Log.String()) {
			text := strings.ToLower(line)
			incompatible := slices.ContainsFunc([]string{"unknown", "malformed", "newer version", "cannot be read", "passed over"},
				func(word string) bool { return strings.Contains(text, word) })
			slow := strings.Contains(text, "redis") || strings.Contains(text, "lease lost") // a busy machine has not renewed it in time
			if incompatible || strings.Contains(text, "level=error") && !slow {
				f.t.Errorf("%s logged: %s", filepath.Base(p.Cmd.Path), line)
			}
		}
	}
}

// upgradesUnderLoad kills workers of the previous version with SIGKILL and replaces them by workers of this version during a
// storm of pushes, and then the other way round. Workers of the previous version process the rest.
func upgradesUnderLoad(t *testing.T, fleet *fleet) {
	s := newStorm(t, durable...)
	f := s.follow()
	args := append([]string{"serve"}, s.serve()...)
	workers := []*proctest.Process{fleet.before(nil, args...), fleet.before(nil, args...), fleet.now(nil, args...)}
	pushing, stop := context.WithCancel(t.Context())
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return s.run(pushing) })
	random := rand.New(rand.NewPCG(s.seed, 1))
	replace := func(i int, start func(env []string, args ...string) *proctest.Process) {
		t.Helper()
		f.awaitMore(t, 10+random.IntN(15))
		workers[i].Kill()
		workers[i] = start(nil, args...)
	}
	for range 2 {
		replace(0, fleet.now)
		replace(1, fleet.now) // only new workers
		replace(2, fleet.before)
		replace(0, fleet.before)
		replace(1, fleet.before) // only old workers
		replace(2, fleet.now)
	}
	workers[2].Kill()
	stop()
	proctest.Must(0, g.Wait())(t)
	s.assertComplete(f)
	fleet.assertQuiet()
	for name, verify := range map[string]func(env []string, args ...string) *proctest.Process{"before": fleet.before, "now": fleet.now} {
		p := verify(nil, "repos", "verify", "--all", "--redis", s.server.URL(), "--root", s.root)
		if code := p.AwaitExit(time.Minute); code != term.ExitDone {
			t.Errorf("verify by the version %q: exit code %d\n%s", name, code, p.Log)
		}
	}
}

// upgradeApp receives notifications.
type upgradeApp struct {
	mu       sync.Mutex
	ids      map[string]events.Result
	received map[string][]events.Result // by app and repository, in order, deduplicated
}

func (a *upgradeApp) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	result, err := events.ParseResult(body)
	if err != nil || result.Type != events.ResultSynced {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	id := r.Header.Get("webhook-id")
	if _, duplicate := a.ids[id]; duplicate {
		return
	}
	a.ids[id] = result
	key := result.App + " " + result.Repo.String()
	a.received[key] = append(a.received[key], result)
}

// all returns what was received.
func (a *upgradeApp) all() map[string][]events.Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.received)
}

// last returns the commit in the app's last notification for a repository.
func (a *upgradeApp) last(app, repo string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	results := a.received[app+" "+repo]
	if len(results) == 0 {
		return ""
	}
	return results[len(results)-1].After
}

// upgradesReceivers sends webhooks to receivers of both versions, with workers and notifiers of both versions, and replaces
// them one after another; one version delivers what the other spooled. Each webhook must have one result, and each app must
// receive every push, in order.
func upgradesReceivers(t *testing.T, fleet *fleet) {
	redistest.StartReal(t) // skips the test without redis-server: the embedded server does not survive a restart
	u := newUpgrade(t)
	u.watch(fleet.before, "docs")
	u.watch(fleet.now, "search")

	receivers := []*receiver{u.receive(fleet.before, "a"), u.receive(fleet.now, "b")}
	work, notify := u.workerArgs(), u.notifierArgs()
	workers := []*proctest.Process{fleet.before(u.env, work...), fleet.now(u.env, work...)}
	notifiers := []*proctest.Process{fleet.before(u.env, notify...), fleet.now(u.env, notify...)}
	u.push(receivers, 24)

	// Replace old processes; a new receiver delivers what an old one spooled. Notifiers stop with SIGTERM, because
	// another would take over their notifications only a minute after a kill.
	workers[0].Kill()
	if code := notifiers[0].Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
	u.server.Stop()
	u.push(receivers, 6)
	receivers[0].Process.Kill()
	u.server.Restart()
	receivers[0] = u.receive(fleet.now, "a")
	u.push(receivers, 12)
	u.awaitNotifications()

	// Roll back; old receivers deliver what new ones spooled.
	if code := notifiers[1].Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
	u.server.Stop()
	u.push(receivers, 6)
	for _, p := range []*proctest.Process{workers[1], receivers[0].Process, receivers[1].Process} {
		p.Kill()
	}
	u.server.Restart()
	receivers[0], receivers[1] = u.receive(fleet.before, "a"), u.receive(fleet.before, "b")
	fleet.before(u.env, work...)
	fleet.before(u.env, notify...)
	u.push(receivers, 12)
	u.awaitNotifications()

	u.assertOneResultEach()
	u.assertNotifiedInOrder()
	for _, repo := range u.repos {
		assertCheckout(t, filepath.Join(u.root, repo), u.git.Head(repo, "refs/heads/main"))
	}
	proctest.AssertIdle(t, u.server.Client())
	fleet.assertQuiet()
}

// upgrade is the environment of upgradesReceivers.
type upgrade struct {
	t      *testing.T
	git    *gitserver.Server
	server *redistest.Server
	root   string
	dir    string // of credentials, sources and spools
	env    []string
	app    *upgradeApp
	url    string // of the app
	repos  []string
	pushes int
	sent   []string // IDs of the changes from webhooks
}

func newUpgrade(t *testing.T) *upgrade {
	t.Helper()
	u := &upgrade{t: t, git: proctest.StartGit(t), server: redistest.Start(t, durable...), root: t.TempDir(), dir: t.TempDir(),
		app: &upgradeApp{ids: map[string]events.Result{}, received: map[string][]events.Result{}}}
	app := httptest.NewServer(u.app)
	t.Cleanup(app.Close)
	u.url = app.URL
	for i := range 5 {
		repo := fmt.Sprintf("acme/hook-%d", i)
		proctest.Must(u.git.Create(t.Context(), repo, map[string]string{"version": "0"}))(t)
		u.repos = append(u.repos, repo)
	}
	u.env = []string{
		"LOCKSTEP_HOOK_HUB_FORGE=github", "LOCKSTEP_HOOK_HUB_SECRET=" + testHookSecret,
		"LOCKSTEP_CREDENTIAL_SIGNER_SIGNING_SECRET=s3cret-of-24-characters", "LOCKSTEP_CREDENTIAL_SIGNER_URLS=" + u.url + "/",
	}
	return u
}

func (u *upgrade) workerArgs() []string {
	return []string{"serve", "--roles", "worker,scheduler", "--redis", u.server.URL(), "--root", u.root, "--lease", "1s", "--log-level", "warn",
		"--tree-grace", "1s", "--retry-base", "100ms", "--hosts", "127.0.0.1"}
}

func (u *upgrade) notifierArgs() []string {
	return []string{"serve", "--roles", "notifier", "--redis", u.server.URL(), "--notify-hosts", "127.0.0.1", "--log-level", "warn"}
}

// watch makes an app watch all repositories.
func (u *upgrade) watch(run func(env []string, args ...string) *proctest.Process, app string) {
	u.t.Helper()
	for _, repo := range u.repos {
		p := run(u.env, "watch", "add", u.git.URL(repo), "--app", app, "--poll", "never", "--notify-url", u.url+"/"+app, "--notify-secret", "signer", "--redis", u.server.URL())
		if code := p.AwaitExit(time.Minute); code != term.ExitDone {
			u.t.Fatalf("watch add: exit code %d: %s", code, p.Log)
		}
	}
}

type receiver struct {
	*proctest.Process
	address string
}

func (u *upgrade) receive(run func(env []string, args ...string) *proctest.Process, spool string) *receiver {
	u.t.Helper()
	p := run(u.env, "serve", "--roles", "receiver", "--listen", "127.0.0.1:0", "--redis", u.server.URL(), "--spool", filepath.Join(u.dir, spool))
	return &receiver{p, p.ListenAddress("listening")}
}

// push makes n pushes, every other one to the first repository, and sends the webhooks to the receivers in turn.
func (u *upgrade) push(receivers []*receiver, n int) {
	u.t.Helper()
	for range n {
		u.pushes++
		repo := u.repos[0]
		if u.pushes%2 == 0 {
			repo = u.repos[u.pushes/2%len(u.repos)]
		}
		before := u.git.Head(repo, "refs/heads/main")
		after := proctest.Must(u.git.Commit(u.t.Context(), repo, gitserver.Main, gitserver.Edit{Write: map[string]string{"version": fmt.Sprint(u.pushes)}}))(u.t)
		to, id := receivers[u.pushes%len(receivers)], fmt.Sprintf("d%03d", u.pushes)
		webhook{id: id, repo: repo, url: u.git.URL(repo), before: before, after: after}.mustSend(u.t, to.address)
		u.sent = append(u.sent, "hub/"+id+"/0", "hub/"+id+"/1")
	}
}

// awaitNotifications waits until each app received the head of each repository.
func (u *upgrade) awaitNotifications() {
	u.t.Helper()
	for _, repo := range u.repos {
		for _, app := range stormApps {
			proctest.Eventually(u.t, func() bool { return u.app.last(app, repo) == u.git.Head(repo, "refs/heads/main") },
				"%s is notified of the last push to %s", app, repo)
		}
	}
}

func (u *upgrade) assertOneResultEach() {
	u.t.Helper()
	counts := map[string]int{}
	proctest.Eventually(u.t, func() bool {
		clear(counts)
		for _, r := range resultsIn(u.t, u.server.Client()) {
			for _, id := range r.Deliveries {
				counts[id]++
			}
			if r.Type == events.ResultFailed {
				u.t.Fatalf("%s failed: %s", r.Repo, r.Error)
			}
		}
		return !slices.ContainsFunc(u.sent, func(id string) bool { return counts[id] == 0 })
	}, "each webhook has a result")
	for _, id := range u.sent {
		if counts[id] != 1 {
			u.t.Errorf("%s has %d results, want 1", id, counts[id])
		}
	}
}

// assertNotifiedInOrder checks that each app's notifications for a repository lead from commit to commit without gaps.
func (u *upgrade) assertNotifiedInOrder() {
	u.t.Helper()
	u.app.mu.Lock()
	defer u.app.mu.Unlock()
	for key, results := range u.app.received {
		for i := 1; i < len(results); i++ {
			if results[i].Before != results[i-1].After {
				u.t.Errorf("%s: %.12s to %.12s follows %.12s", key, results[i].Before, results[i].After, results[i-1].After)
			}
		}
	}
	u.t.Logf("%d pushes, %d changes, %d notifications", u.pushes, len(u.sent), len(u.app.ids))
}
