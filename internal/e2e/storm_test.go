package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// storm is a load with a known outcome: pushes to two refs of each of several repositories, half of them to one repository,
// some forced, each announced to two apps.
type storm struct {
	t      *testing.T
	git    *gitserver.Server
	server *redistest.Server
	url    string // of the server, or of the Sentinels that watch it
	client redis.UniversalClient
	root   string
	seed   uint64
	rand   *rand.Rand // used only by the goroutine that pushes

	repos  []string
	pushes int
	forced int
	trees  map[string]map[string]string // files by commit
	first  map[string]string            // first commit by repository

	hooked bool // a webhook may announce a push to the default branch after the next one: no push is forced there

	mu   sync.Mutex
	sent []announcement
}

// announcement is a published change.
type announcement struct {
	id        string
	confirmed bool // by Redis
}

var (
	stormRefs = []string{"refs/heads/main", "refs/heads/next"}
	stormApps = []string{"docs", "search"}
)

func newStorm(t *testing.T, redisArgs ...string) *storm {
	t.Helper()
	return newStormOn(t, redistest.Start(t, redisArgs...))
}

func newStormOn(t *testing.T, server *redistest.Server) *storm {
	t.Helper()
	s := &storm{
		t: t, git: proctest.StartGit(t), server: server, url: server.URL(), root: t.TempDir(), seed: testenv.Seed(t),
		trees: map[string]map[string]string{}, first: map[string]string{},
	}
	s.rand = rand.New(rand.NewPCG(s.seed, 0))
	s.client = s.server.Client()
	for i := range 8 {
		repo := fmt.Sprintf("acme/repo-%d", i)
		files := map[string]string{"version": "0", "stays": repo}
		commit := proctest.Must(s.git.Create(t.Context(), repo, files))(t)
		s.repos, s.trees[commit], s.first[repo] = append(s.repos, repo), files, commit
		proctest.Must(0, s.git.SetRef(t.Context(), repo, stormRefs[1], commit))(t)
	}
	return s
}

// serve returns the arguments of a worker.
func (s *storm) serve() []string { return s.serveAt(s.url) }

// serveAt is serve with another URL of the same Redis.
func (s *storm) serveAt(url string) []string {
	return []string{
		"--redis", url, "--root", s.root, "--lease", "1s", "--lock-wait", "10s", "--tree-grace", "1s",
		"--slots", "4", "--log-level", "error",
	}
}

// run pushes until ctx is done, and waits while the backlog is long.
func (s *storm) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if n, err := s.backlog(ctx); s.pushes > 0 && (err != nil || n > 400) {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		repo, ref := s.repos[0], stormRefs[s.rand.IntN(2)]
		if s.rand.IntN(2) == 0 {
			repo = s.repos[s.rand.IntN(len(s.repos))]
		}
		times := 1
		if repo == s.repos[0] && s.rand.IntN(20) == 0 {
			times = 90 // more than a worker reads of one repository at a time
		}
		if err := s.push(repo, ref, times); err != nil {
			return err
		}
		pause(ctx, time.Duration(s.rand.IntN(60))*time.Millisecond)
	}
	return nil
}

// backlog counts the changes that are not done yet.
func (s *storm) backlog(ctx context.Context) (int64, error) {
	groups, err := s.client.XInfoGroups(ctx, events.DefaultNamespace.Changes()).Result()
	if err != nil || len(groups) == 0 {
		return 0, err
	}
	return groups[0].Pending + max(0, groups[0].Lag), nil
}

// push makes a commit and announces it to each app the given number of times.
func (s *storm) push(repo, ref string, times int) error {
	ctx := context.Background()
	s.pushes++
	edit := gitserver.Edit{
		Write:  map[string]string{"version": fmt.Sprint(s.pushes), fmt.Sprintf("dir/file-%d", s.rand.IntN(12)): fmt.Sprint(s.pushes)},
		Parent: s.git.Head(repo, ref),
	}
	if s.rand.IntN(10) == 0 && (!s.hooked || ref != stormRefs[0]) {
		edit.Parent = s.first[repo]
		s.forced++
	}
	commit, err := s.git.Commit(ctx, repo, filepath.Base(ref), edit)
	if err != nil {
		return err
	}
	s.trees[commit] = maps.Clone(s.trees[edit.Parent])
	maps.Copy(s.trees[commit], edit.Write)
	for range times {
		for _, app := range stormApps {
			announced := ref
			if ref == stormRefs[0] && app == stormApps[0] {
				announced = "" // the default branch, which is the same
			}
			if err := s.announce(repo, announced, app, commit); err != nil {
				return err
			}
		}
	}
	return nil
}

// announce publishes a change. If Redis does not confirm it, the change may or may not be in the stream, so announce
// publishes another one with a new ID.
func (s *storm) announce(repo, ref, app, commit string) error {
	for began := time.Now(); ; {
		id := uuid.NewString()
		err := addChange(context.Background(), s.client, map[string]string{"id": id, "url": s.git.URL(repo), "ref": ref, "app": app, "after": commit})
		s.sends(id, err == nil)
		if err == nil || time.Since(began) > 2*time.Minute {
			return err
		}
		time.Sleep(20 * time.Millisecond) // Redis is down, and there is no signal for its return
	}
}

// sends records a published change.
func (s *storm) sends(id string, confirmed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, announcement{id, confirmed})
}

// pushAll pushes once to every ref of every repository and returns the IDs of the confirmed changes.
func (s *storm) pushAll() []string {
	s.t.Helper()
	before := len(s.sent)
	for _, repo := range s.repos {
		for _, ref := range stormRefs {
			proctest.Must(0, s.push(repo, ref, 1))(s.t)
		}
	}
	var ids []string
	for _, a := range s.sent[before:] {
		if a.confirmed {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// assertTrees checks that the head of every ref of every repository is published with a clean tree, and that crashes left
// nothing behind.
func (s *storm) assertTrees() {
	s.t.Helper()
	for _, repo := range s.repos {
		for _, ref := range stormRefs {
			dir := filepath.Join(s.root, repo)
			if ref != stormRefs[0] {
				dir += "@" + filepath.Base(ref)
			}
			if got, want := gitIn(s.t, dir, "rev-parse", "HEAD"), s.git.Head(repo, ref); got != want {
				s.t.Errorf("%s is at %s, want the remote's head %s", dir, got, want)
			}
			if dirty := gitIn(s.t, dir, "status", "--porcelain"); dirty != "" {
				s.t.Errorf("%s is not clean: %s", dir, dirty)
			}
		}
	}
	s.assertNoLeftovers()
}

// assertNoLeftovers checks that crashes left no unfinished work behind. Running workers may still prepare trees.
func (s *storm) assertNoLeftovers() {
	s.t.Helper()
	for _, pattern := range []string{"quarantine/*", "building/*", "flip-*"} {
		everywhere := filepath.Join(s.root, ".lockstep/repos/acme/*", pattern)
		proctest.Eventually(s.t, func() bool { return len(proctest.Must(filepath.Glob(everywhere))(s.t)) == 0 }, "no %s is left behind", pattern)
	}
}

// assertNothingLeft checks that no work is pending and no lease is held.
func (s *storm) assertNothingLeft() {
	s.t.Helper()
	proctest.AssertIdle(s.t, s.client)
	proctest.Eventually(s.t, func() bool {
		stdout, _, code := proctest.RunLockstep(s.t, nil, "locks", "ls", "--redis", s.url)
		return code == 0 && !strings.Contains(stdout, "acme/")
	}, "no lease is held")
}
