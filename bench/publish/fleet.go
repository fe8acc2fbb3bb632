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
	"time"

	"github.com/google/uuid"

	"lockstep/bench/rig"
	"lockstep/events"
)

const hookSecret = "a secret of the source, to measure with"

// target is a ref of a repository.
type target struct{ repo, ref string }

// fleet is a lockstep serve with a private Redis and volume, which watches repositories of a forge and receives webhooks of pushes.
type fleet struct {
	*rig.Service
	*rig.Follower
	name  string
	forge *rig.Forge
	host  *rig.Host // serves the forge
	hook  string    // URL
}

// startFleet starts a binary with default settings, lets it clone the targets at the first commit of the chain, and reads its results until
// the end of the run.
func startFleet(ctx context.Context, env *rig.Env, side rig.Side, dir string, forge *rig.Forge, host *rig.Host, targets []target) (*fleet, error) {
	f := &fleet{name: side.Name, forge: forge, host: host}
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
	server, err := env.OpenRedis(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		forge.Push(t.repo, t.ref, 0)
	}
	f.Service, err = env.Serve(ctx, side, server, filepath.Join(dir, "repos"), "--log-level", "info",
		"--hooks", filepath.Dir(source), "--spool", filepath.Join(dir, "spool"), "--listen", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address, err := f.Listening(ctx)
	if err != nil {
		return nil, err
	}
	f.hook = "http://" + address + "/hooks/hub"
	if f.Follower, err = env.Follow(ctx, server); err != nil {
		return nil, err
	}
	importing := exec.CommandContext(ctx, side.Path, "watch", "import", watches, "--redis", server.URL)
	importing.Dir = dir
	if out, err := importing.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("watch import: %w: %s", err, out)
	}
	ctx, cancel := f.patience(ctx)
	defer cancel()
	results := func() (int64, error) { return server.Client.XLen(ctx, events.DefaultNamespace.Results()).Result() }
	return f, errors.Join(rig.AwaitCount(ctx, int64(len(targets)), results), rig.AwaitIdle(ctx, f.Cmd.Process.Pid, idle))
}

// watches returns the file of watches, one for each target.
func (f *fleet) watches(targets []target) string {
	var b strings.Builder
	b.WriteString("watches:\n")
	for _, t := range targets {
		fmt.Fprintf(&b, "  - app: bench\n    url: %s\n", f.host.URL(t.repo))
		if t.ref != "refs/heads/main" {
			fmt.Fprintf(&b, "    ref: %s\n", t.ref)
		}
	}
	return b.String()
}

// patience limits how long pushes may stay invisible.
func (f *fleet) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, publishTimeout, errors.New("pushes stay invisible; is the worker stuck?\n"+f.Log()))
}

// post posts the webhook of a push. The push is visible when the result of its delivery is read.
func (f *fleet) post(ctx context.Context, t target, n int, due time.Time) (*rig.Wait, error) {
	delivery := uuid.NewString()
	wait := f.Expect("hub/"+delivery+"/0", due)
	body := fmt.Sprintf(`{"ref":%q,"before":%q,"after":%q,"repository":{"full_name":%q,"clone_url":%q,"default_branch":"main"}}`,
		t.ref, f.forge.Commits[n-1], f.forge.Commits[n], t.repo, f.host.URL(t.repo))
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte(body))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.hook, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "push")
	req.Header.Set("X-GitHub-Delivery", delivery)
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("webhook: %s: %s", resp.Status, answer)
	}
	return wait, err
}

// startFleets starts all sides, each with targets of its own, in folders of dir, or of TMPDIR if it is "".
func startFleets(
	ctx context.Context, env *rig.Env, against, dir string, forge *rig.Forge, delay time.Duration, targets func(side int) []target,
) ([]*fleet, error) {
	sides, err := env.Sides(ctx, against)
	if err != nil {
		return nil, err
	}
	root, err := env.TempDir(dir)
	if err != nil {
		return nil, err
	}
	host, err := env.ServeHost(1, rig.Delayed(delay, forge))
	if err != nil {
		return nil, err
	}
	fleets := make([]*fleet, len(sides))
	for i, side := range sides {
		env.Progress("%s: first clones", side.Name)
		fleets[i], err = startFleet(ctx, env, side, filepath.Join(root, fmt.Sprint("side-", i)), forge, host, targets(i))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", side.Name, err)
		}
	}
	return fleets, nil
}
