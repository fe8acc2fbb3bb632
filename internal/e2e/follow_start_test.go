package e2e

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/follow"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
)

// noCopies is a volume without repositories.
type noCopies struct{}

func (noCopies) Repos() iter.Seq2[events.RepoPath, error] {
	return func(func(events.RepoPath, error) bool) {}
}

func (noCopies) Published(events.RepoPath) (volume.Published, bool, error) {
	return volume.Published{}, false, nil
}

func (noCopies) Locate(events.RepoPath, events.Ref) (volume.Located, bool, error) {
	return volume.Located{}, false, nil
}

// TestManyFollowersStartTogether starts more followers of an app at once than its reader lets list repositories: all get through.
func TestManyFollowersStartTogether(t *testing.T) {
	if !testenv.Soaking() {
		t.Skip("soak form: run make test-soak, or set LOCKSTEP_SOAK=1")
	}
	t.Parallel()
	const count, repositories = 100, 300
	o := startOrigin(t)
	o.worker.AwaitLog("worker takes changes")
	o.worker.Kill() // nothing is fetched: the state says that all is settled
	commit := strings.Repeat("a", 40)
	for n := range repositories {
		name := fmt.Sprintf("acme/r%d", n)
		o.watch(name, "refs/heads/main")
		key := events.DefaultNamespace.Repo(proctest.Must(events.ParseRepoPath(name))(t))
		proctest.Must(0, o.client.HSet(t.Context(), key, "repo", name, "head:refs/heads/main", commit, "given:refs/heads/main:search", commit).Err())(t)
	}
	file := filepath.Join(t.TempDir(), "token")
	proctest.Must(0, os.WriteFile(file, []byte(o.token), 0o600))(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var followers []*follow.Follower
	for range count {
		followers = append(followers, startFollower(t, ctx, &running, o.url, file))
	}
	begin := time.Now()
	waiting := func() (n int) {
		for _, f := range followers {
			if f.Status().Repos != repositories {
				n++
			}
		}
		return n
	}
	proctest.Eventually(t, func() bool { return waiting() <= count/2 }, "half of the followers have listed all")
	half := time.Since(begin)
	proctest.Eventually(t, func() bool { return waiting() == 0 }, "all followers have listed all")
	t.Logf("%d followers have listed %d repositories: half of them after %v, all after %v", count, repositories, half, time.Since(begin))
}

// startFollower runs a follower without a volume until ctx is done.
func startFollower(t *testing.T, ctx context.Context, running *sync.WaitGroup, url, tokenFile string) *follow.Follower {
	t.Helper()
	reader := proctest.Must(follow.NewReader(url, tokenFile))(t)
	root := t.TempDir()
	proctest.Must(0, os.Mkdir(filepath.Join(root, ".lockstep"), 0o755))(t)
	record := proctest.Must(follow.OpenRecord(root, url, 1, func() (bool, error) { return true, nil }))(t)
	t.Cleanup(record.Close)
	f := proctest.Must(follow.New(follow.Config{
		Reader: reader, Volume: noCopies{}, Record: record, Log: slog.New(slog.DiscardHandler),
		Publish: func(context.Context, events.Change) error { return nil },
		Purge:   func(context.Context, events.RepoPath) error { return nil },
	}))(t)
	running.Go(func() { _ = f.Run(ctx) })
	return f
}
