package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestPushCostsTheSameAfterThousands pushes to one repository, back to back, and compares the CPU time per push at the end with that of
// pushes to a fresh repository, while all replaced trees are within their grace: alone, beside many other published refs, and with an app that never
// acknowledges a result. LOCKSTEP_TEST_BINARY names another lockstep binary to measure.
func TestPushCostsTheSameAfterThousands(t *testing.T) {
	testenv.SkipUnderRace(t)
	if !testenv.Soaking() {
		t.Skip("processor time needs the machine to itself: run make test-soak")
	}
	for name, d := range map[string]pushCosts{
		"one ref":                         {},
		"20 refs":                         {refs: 20},
		"an app that never acknowledges":  {unacknowledged: true},
		"a notified app that never works": {refs: 20, unacknowledged: true, notified: true},
	} {
		t.Run(name, d.run)
	}
}

// pushCosts is a deployment whose costs are measured.
type pushCosts struct {
	refs                     int // published besides main
	unacknowledged, notified bool

	*testing.T
	git      *gitserver.Server
	client   redis.UniversalClient
	worker   *proctest.Process
	notifier *proctest.Process
	redisPID int
	last     string // ID of the last result
}

// costs is CPU time.
type costs struct{ worker, redis, notifier time.Duration }

const costlyRepo, freshRepo = "acme/costly", "acme/fresh"

func (p pushCosts) run(t *testing.T) {
	p.T, p.last = t, "0"
	const pushes, part = 2000, 200
	ctx := t.Context()
	p.git = proctest.StartGit(t)
	commits := p.commit(pushes)
	server := redistest.StartReal(t)
	p.client = server.Client()
	info := proctest.Must(p.client.InfoMap(ctx, "server").Result())(t)
	proctest.Must(fmt.Sscan(info["Server"]["process_id"], &p.redisPID))(t)
	if p.unacknowledged {
		proctest.Must(p.client.XGroupCreateMkStream(ctx, events.DefaultNamespace.Results(), "never", "0").Result())(t)
	}
	if p.notified {
		app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
		t.Cleanup(app.Close)
		credentials := t.TempDir()
		proctest.Must(0, os.Mkdir(filepath.Join(credentials, "docs-hook"), 0o700))(t)
		for file, text := range map[string]string{"signingSecret": "a secret of the app\n", "urls": app.URL + "/\n"} {
			proctest.Must(0, os.WriteFile(filepath.Join(credentials, "docs-hook", file), []byte(text), 0o600))(t)
		}
		for _, repo := range []string{costlyRepo, freshRepo} {
			_, stderr, code := proctest.RunLockstep(t, nil, "watch", "add", p.git.URL(repo), "--app", "docs", "--poll", "never",
				"--notify-url", app.URL+"/hook", "--notify-secret", "docs-hook", "--redis", server.URL())
			if code != 0 {
				t.Fatalf("watch add: exit code %d: %s", code, stderr)
			}
		}
		proctest.Must(p.client.Del(ctx, events.DefaultNamespace.Changes()).Result())(t) // drop the first poll
		p.notifier = p.start("serve", "--redis", server.URL(), "--roles", "notifier", "--notify-hosts", "127.0.0.1", "--credentials", credentials, "--root", t.TempDir())
	}
	p.worker = p.start("serve", "--redis", server.URL(), "--roles", "worker", "--root", t.TempDir(), "--log-level", "warn")
	p.push(costlyRepo, "refs/heads/main", commits[0])
	for i := range p.refs {
		p.push(costlyRepo, fmt.Sprint("refs/heads/other-", i), commits[0])
	}
	began, at := time.Now(), p.cost()
	for i, commit := range commits[1 : len(commits)-part] {
		p.push(costlyRepo, "refs/heads/main", commit)
		if i%part != part-1 {
			continue
		}
		now, took := p.cost(), time.Since(began)
		each := now.minus(at).by(part)
		t.Logf("pushes %d to %d: CPU per push: worker %v, Redis %v, notifier %v; %v per push", i+2-part, i+1,
			each.worker, each.redis, each.notifier, (took / time.Duration(part)).Round(time.Microsecond))
		began, at = time.Now(), p.cost()
	}

	// The load of the machine changes what CPU time buys, so the last pushes take turns with the first ones of a fresh repository.
	proctest.Must(0, p.git.Alias(freshRepo, costlyRepo))(t)
	p.push(freshRepo, "refs/heads/main", commits[len(commits)-part-1])
	var costly, fresh costs
	for _, commit := range commits[len(commits)-part:] {
		before := p.cost()
		p.push(costlyRepo, "refs/heads/main", commit)
		between := p.cost()
		p.push(freshRepo, "refs/heads/main", commit)
		costly, fresh = costly.plus(between.minus(before)), fresh.plus(p.cost().minus(between))
	}
	costly, fresh = costly.by(part), fresh.by(part)
	t.Logf("the last %d pushes: worker %v, Redis %v; to a fresh repository: worker %v, Redis %v", part, costly.worker, costly.redis, fresh.worker, fresh.redis)
	const most = 1.5 // beside other tests; bench publish burst measures it more precisely
	for what, both := range map[string][2]time.Duration{"the worker": {costly.worker, fresh.worker}, "Redis": {costly.redis, fresh.redis}} {
		if float64(both[0]) > most*float64(both[1]) {
			t.Errorf("CPU of %s per push: %v after %d pushes, %v for a fresh repository; want at most %.1f times as much", what, both[0], pushes-part, both[1], most)
		}
	}
}

func (c costs) plus(d costs) costs {
	return costs{c.worker + d.worker, c.redis + d.redis, c.notifier + d.notifier}
}

func (c costs) minus(d costs) costs {
	return costs{c.worker - d.worker, c.redis - d.redis, c.notifier - d.notifier}
}

func (c costs) by(n int) costs {
	return costs{c.worker / time.Duration(n), c.redis / time.Duration(n), c.notifier / time.Duration(n)}
}

// commit makes a repository of 60 files and commits to push, which the server has but no ref of.
func (p pushCosts) commit(pushes int) []string {
	p.Helper()
	ctx := p.Context()
	files := map[string]string{}
	for i := range 60 {
		files[fmt.Sprintf("src/%d/file-%d.txt", i%6, i)] = strings.Repeat(fmt.Sprintf("line of file %d\n", i), 40)
	}
	base := proctest.Must(p.git.Create(ctx, costlyRepo, files))(p.T)
	var script strings.Builder
	for i := range pushes {
		fmt.Fprintf(&script, "commit refs/heads/next\ncommitter Bench <bench@example.com> %d +0000\ndata 4\npush\n", 1_700_000_000+i)
		if i == 0 {
			fmt.Fprintf(&script, "from %s\n", base)
		}
		line := fmt.Sprintf("push %d\n", i)
		fmt.Fprintf(&script, "M 100644 inline src/%d/file-%d.txt\ndata %d\n%s\n", i%6, i%60, len(line), line)
	}
	script.WriteString("done\n")
	proctest.Must(p.git.Git(ctx, costlyRepo, script.String(), "fast-import", "--quiet", "--force", "--done"))(p.T)
	list := proctest.Must(p.git.Git(ctx, costlyRepo, "", "rev-list", "--reverse", base+"..refs/heads/next"))(p.T)
	proctest.Must(0, p.git.DeleteRef(ctx, costlyRepo, "refs/heads/next"))(p.T)
	return append([]string{base}, strings.Fields(list)...)
}

func (p pushCosts) start(args ...string) *proctest.Process {
	p.Helper()
	cmd := proctest.Command(p.T, args...)
	if other := os.Getenv("LOCKSTEP_TEST_BINARY"); other != "" {
		other = exec.Command(other, args...).Path
		cmd.Path, cmd.Args[0] = other, other
	}
	process := proctest.StartCommand(p.T, cmd)
	return process
}

// push sets a ref, announces the commit, and waits for its result.
func (p *pushCosts) push(repo, ref, commit string) {
	p.Helper()
	path := filepath.Join(p.git.Dir(costlyRepo), filepath.FromSlash(ref))
	proctest.Must(0, os.WriteFile(path, []byte(commit+"\n"), 0o644))(p.T)
	values := []string{"repo", repo, "url", p.git.URL(repo), "ref", ref, "after", commit}
	if p.notified && ref == "refs/heads/main" {
		values = append(values, "app", "docs")
	}
	proctest.Must(p.client.XAdd(p.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: values}).Result())(p.T)
	ctx, cancel := context.WithTimeout(p.Context(), time.Minute)
	defer cancel()
	read := proctest.Must(p.client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), p.last}, Block: time.Minute}).Result())(p.T)
	entries := read[0].Messages
	p.last = entries[len(entries)-1].ID
	if result := proctest.DecodeResult(p.T, entries[0]); len(entries) != 1 || result.Type != events.ResultSynced || result.After != commit {
		p.Fatalf("%d results, the first is %+v, want one for %s", len(entries), result, commit)
	}
	if p.unacknowledged {
		proctest.Must(p.client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "never", Consumer: "app", Streams: []string{events.DefaultNamespace.Results(), ">"}}).Result())(p.T)
	}
}

func (p *pushCosts) cost() costs {
	p.Helper()
	now := costs{worker: cpuTime(p.T, p.worker.Cmd.Process.Pid), redis: cpuTime(p.T, p.redisPID)}
	if p.notifier != nil {
		now.notifier = cpuTime(p.T, p.notifier.Cmd.Process.Pid)
	}
	return now
}

// cpuTime returns the CPU time of a process, in user and kernel mode.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	var at unix.Timespec
	proctest.Must(0, unix.ClockGettime(int32(^pid<<3|2), &at))(t) // see clock_getcpuclockid(3); 2 is CPUCLOCK_SCHED
	return time.Duration(at.Nano())
}
