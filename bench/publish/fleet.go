package publish

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/bench/rig"
	"lockstep/events"
)

const hookSecret = "a secret of the source, to measure with"

// target is a ref of a repository.
type target struct{ repo, ref string }

// fleet is a running lockstep serve with a private Redis and volume, which watches repositories of a forge and hears of pushes by webhooks.
type fleet struct {
	name, dir string
	forge     *rig.Forge
	process   *rig.Process
	redis     *rig.Redis
	hook      string // URL

	mu      sync.Mutex
	waiting map[target][]*push // in order
	arrived map[target]int     // index of the newest commit with a result
	failed  error
	changed chan struct{} // closed and replaced when a push becomes visible, or with failed
}

// push is the push of one commit.
type push struct {
	target
	n       int       // index of the commit
	due     time.Time // its latency counts from here
	visible time.Duration
}

// startFleet starts a binary with default settings, lets it clone the targets at the first commit of the chain, and reads its results until
// the end of the run.
func startFleet(ctx context.Context, env *rig.Env, side rig.Side, dir string, forge *rig.Forge, targets []target) (*fleet, error) {
	f := &fleet{name: side.Name, dir: dir, forge: forge, waiting: map[target][]*push{}, arrived: map[target]int{}, changed: make(chan struct{})}
	source, watches := filepath.Join(dir, "hooks", "hub"), filepath.Join(dir, "watches.yaml")
	if err := os.MkdirAll(source, 0o700); err != nil {
		return nil, err
	}
	for path, content := range map[string]string{
		filepath.Join(source, "forge"): "github", filepath.Join(source, "secret"): hookSecret, watches: f.watches(targets),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	var err error
	if f.redis, err = env.OpenPrivateRedis(ctx); err != nil {
		return nil, err
	}
	for _, t := range targets {
		forge.Push(t.repo, t.ref, 0)
	}
	f.process, err = env.StartBinary(ctx, side.Path, "serve", "--redis", f.redis.URL, "--root", filepath.Join(dir, "repos"),
		"--hooks", filepath.Dir(source), "--spool", filepath.Join(dir, "spool"), "--listen", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address, err := f.process.Listening(ctx)
	if err != nil {
		return nil, err
	}
	f.hook = "http://" + address + "/hooks/hub"
	readCtx, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { f.read(readCtx) })
	env.Cleanup(func() { stop(); reading.Wait() })

	importing := exec.CommandContext(ctx, side.Path, "watch", "import", watches, "--redis", f.redis.URL)
	importing.Dir = dir
	if out, err := importing.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("watch import: %w: %s", err, out)
	}
	for _, t := range targets {
		f.expect(&push{target: t})
	}
	return f, f.awaitAll(ctx)
}

// watches returns the file of watches, one for each target.
func (f *fleet) watches(targets []target) string {
	var b strings.Builder
	b.WriteString("watches:\n")
	for _, t := range targets {
		fmt.Fprintf(&b, "  - app: bench\n    url: %s\n", f.forge.URL(t.repo))
		if t.ref != "refs/heads/main" {
			fmt.Fprintf(&b, "    ref: %s\n", t.ref)
		}
	}
	return b.String()
}

// push pushes a commit and posts its webhook. The push is visible once [fleet.read] has read a result of it or of a later one.
func (f *fleet) push(ctx context.Context, p *push) error {
	f.expect(p)
	f.forge.Push(p.repo, p.ref, p.n)
	url := f.forge.URL(p.repo)
	body := fmt.Sprintf(`{"ref":%q,"before":%q,"after":%q,"repository":{"full_name":%q,"clone_url":%q,"default_branch":"main"}}`,
		p.ref, f.forge.Commits[p.n-1], f.forge.Commits[p.n], p.repo, url)
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte(body))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.hook, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "push")
	req.Header.Set("X-GitHub-Delivery", fmt.Sprintf("%s %s %d", p.repo, p.ref, p.n))
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("webhook: %s: %s", resp.Status, answer)
	}
	return err
}

func (f *fleet) expect(p *push) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if arrived, ok := f.arrived[p.target]; !ok || arrived < p.n {
		f.waiting[p.target] = append(f.waiting[p.target], p)
	}
}

// read reads results until ctx ends.
func (f *fleet) read(ctx context.Context) {
	for from := "0"; ctx.Err() == nil; {
		streams, err := f.redis.Client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Block: time.Second}).Result()
		if errors.Is(err, redis.Nil) || ctx.Err() != nil {
			continue
		}
		if err != nil {
			f.note(events.Result{}, time.Now(), fmt.Errorf("read results: %w", err))
			return
		}
		now := time.Now()
		for _, entry := range streams[0].Messages {
			from = entry.ID
			payload, _ := entry.Values["payload"].(string)
			result, err := events.ParseResult([]byte(payload))
			f.note(result, now, err)
		}
	}
}

// note marks the pushes that a result makes visible.
func (f *fleet) note(result events.Result, now time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil && result.Type == events.ResultFailed:
		err = fmt.Errorf("sync of %s failed: %s", result.Repo, result.Error)
	case err == nil && result.Type == events.ResultSynced:
		t := target{result.Repo.String(), result.Ref.String()}
		n := f.forge.Place(result.After)
		f.arrived[t] = max(n, f.arrived[t])
		waiting := f.waiting[t]
		for len(waiting) > 0 && waiting[0].n <= n {
			waiting[0].visible = now.Sub(waiting[0].due)
			waiting = waiting[1:]
		}
		f.waiting[t] = waiting
	}
	if f.failed == nil {
		f.failed = err
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// awaitAll waits until all pushes are visible.
func (f *fleet) awaitAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, publishTimeout, errors.New("pushes stay invisible; is the worker stuck?\n"+f.process.Log()))
	defer cancel()
	for {
		f.mu.Lock()
		failed, changed, left := f.failed, f.changed, 0
		for _, waiting := range f.waiting {
			left += len(waiting)
		}
		f.mu.Unlock()
		if failed != nil || left == 0 {
			return failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d pushes left: %w", left, context.Cause(ctx))
		}
	}
}

// spent is CPU time since the start.
type spent struct {
	Worker time.Duration `json:"worker_ns"`
	Redis  time.Duration `json:"redis_ns"`
}

func (f *fleet) cpu(ctx context.Context) (s spent, err error) {
	if s.Worker, err = rig.CPUTime(f.process.Cmd.Process.Pid); err != nil {
		return s, err
	}
	s.Redis, err = f.redis.CPU(ctx)
	return s, err
}

// per returns the CPU time since before, for one of n pushes.
func (s spent) per(n int, before spent) spent {
	return spent{(s.Worker - before.Worker) / time.Duration(n), (s.Redis - before.Redis) / time.Duration(n)}
}

// startFleets starts all sides, each with targets of its own.
func startFleets(ctx context.Context, env *rig.Env, sides []rig.Side, root string, forge *rig.Forge, targets func(side int) []target) ([]*fleet, error) {
	fleets := make([]*fleet, len(sides))
	for i, side := range sides {
		env.Progress("%s: first clones", side.Name)
		var err error
		fleets[i], err = startFleet(ctx, env, side, filepath.Join(root, fmt.Sprint("side-", i)), forge, targets(i))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", side.Name, err)
		}
	}
	return fleets, nil
}
