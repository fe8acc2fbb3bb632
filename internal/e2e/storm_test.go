package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/locking"
)

// storm is a load that knows what must come of it: pushes to two refs each of several repositories,
// half of them to one, some by force, and each announced to two apps. All results are followed as they
// come, as a consumer would, so that one that Redis loses again is known.
type storm struct {
	t      *testing.T
	git    *gitserver.Server
	server *redistest.Server
	client redis.UniversalClient
	root   string
	seed   uint64
	rand   *rand.Rand // of the one goroutine that pushes

	repos  []string
	pushes int
	forced int
	trees  map[string]map[string]string // commit to the files in it
	first  map[string]string            // repo to its first commit

	mu   sync.Mutex
	sent []announcement
}

// announcement is a change that was published.
type announcement struct {
	id      string
	certain bool // Redis has said that it has it
}

var (
	stormRefs = []string{"refs/heads/main", "refs/heads/next"}
	stormApps = []string{"docs", "search"}
)

func newStorm(t *testing.T, redisArgs ...string) *storm {
	t.Helper()
	s := &storm{
		t: t, git: proctest.StartGit(t), server: redistest.Start(t, redisArgs...), root: t.TempDir(), seed: rand.Uint64(),
		trees: map[string]map[string]string{}, first: map[string]string{},
	}
	if text := os.Getenv("LOCKSTEP_SEED"); text != "" {
		proctest.Must(fmt.Sscan(text, &s.seed))(t)
	}
	t.Logf("seed %d", s.seed)
	app.SilenceRedis()
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

// serve are the arguments of a worker in the storm.
func (s *storm) serve() []string {
	return []string{
		"--redis", s.server.URL(), "--root", s.root, "--lease", "1s", "--lock-wait", "10s", "--tree-grace", "1s",
		"--slots", "4", "--log-level", "error",
	}
}

// blow pushes until ctx is done, and no faster than workers follow.
func (s *storm) blow(ctx context.Context) error {
	for ctx.Err() == nil {
		if n, err := s.backlog(ctx); s.pushes > 0 && (err != nil || n > 400) {
			app.Sleep(ctx, 20*time.Millisecond)
			continue
		}
		repo, ref := s.repos[0], stormRefs[s.rand.IntN(2)]
		if s.rand.IntN(2) == 0 {
			repo = s.repos[s.rand.IntN(len(s.repos))]
		}
		times := 1
		if repo == s.repos[0] && s.rand.IntN(20) == 0 {
			times = 90 // more than a worker takes of one repository at a time
		}
		if err := s.push(repo, ref, times); err != nil {
			return err
		}
		app.Sleep(ctx, time.Duration(s.rand.IntN(60))*time.Millisecond)
	}
	return nil
}

// backlog is how many changes workers have not finished yet.
func (s *storm) backlog(ctx context.Context) (int64, error) {
	groups, err := s.client.XInfoGroups(ctx, events.DefaultNamespace.Changes()).Result()
	if err != nil || len(groups) == 0 {
		return 0, err
	}
	return groups[0].Pending + max(0, groups[0].Lag), nil
}

// push makes a commit, and announces it to each app so many times.
func (s *storm) push(repo, ref string, times int) error {
	ctx := context.Background()
	s.pushes++
	edit := gitserver.Edit{
		Write:  map[string]string{"version": fmt.Sprint(s.pushes), fmt.Sprintf("dir/file-%d", s.rand.IntN(12)): fmt.Sprint(s.pushes)},
		Parent: s.git.Head(repo, ref),
	}
	if s.rand.IntN(10) == 0 {
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
			asked := ref
			if ref == stormRefs[0] && app == stormApps[0] {
				asked = "" // the default branch, which is the same
			}
			if err := s.announce(repo, asked, app, commit); err != nil {
				return err
			}
		}
	}
	return nil
}

// announce publishes a change. One of which Redis did not say that it has it is published again, under
// another id: for all we know it is there.
func (s *storm) announce(repo, ref, name, commit string) error {
	for began := time.Now(); ; {
		id := uuid.NewString()
		r, err := events.ParseRef(ref)
		if err != nil {
			return err
		}
		change, err := events.NewChange(events.Change{ID: id, Source: "/storm", URL: s.git.URL(repo), Ref: r, App: name, After: commit})
		if err != nil {
			return err
		}
		err = app.PublishChange(context.Background(), s.client, events.DefaultNamespace, change)
		s.mu.Lock()
		s.sent = append(s.sent, announcement{id, err == nil})
		s.mu.Unlock()
		if err == nil || time.Since(began) > 30*time.Second {
			return err
		}
		time.Sleep(20 * time.Millisecond) // Redis is away, and says when it is back to nobody
	}
}

// calm pushes once more to every ref of every repository, when nothing is disturbed any more, and
// returns the ids of these changes.
func (s *storm) calm() []string {
	s.t.Helper()
	before := len(s.sent)
	for _, repo := range s.repos {
		for _, ref := range stormRefs {
			proctest.Must(0, s.push(repo, ref, 1))(s.t)
		}
	}
	var ids []string
	for _, a := range s.sent[before:] {
		if a.certain {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// assertTrees checks that every ref of every repository is published where its remote has it, clean,
// and that no crash has left anything lying about.
func (s *storm) assertTrees() {
	s.t.Helper()
	for _, repo := range s.repos {
		for _, ref := range stormRefs {
			dir := filepath.Join(s.root, repo)
			if ref != stormRefs[0] {
				dir += "@" + filepath.Base(ref)
			}
			if got, want := gitIn(s.t, dir, "rev-parse", "HEAD"), s.git.Head(repo, ref); got != want {
				s.t.Errorf("%s is at %s, want its remote's %s", dir, got, want)
			}
			if dirty := gitIn(s.t, dir, "status", "--porcelain"); dirty != "" {
				s.t.Errorf("%s is not clean: %s", dir, dirty)
			}
		}
	}
	for _, pattern := range []string{"quarantine/*", "trees/.building-*", "flip-*"} {
		if left := proctest.Must(filepath.Glob(filepath.Join(s.root, ".lockstep/repos/acme/*", pattern)))(s.t); len(left) > 0 {
			s.t.Errorf("left behind: %q", left)
		}
	}
}

// assertNothingLeft checks that nothing in Redis speaks of work any more.
func (s *storm) assertNothingLeft() {
	s.t.Helper()
	ctx := s.t.Context()
	proctest.AssertIdle(s.t, s.client)
	inspector := proctest.Must(locking.NewInspector(locking.InspectorConfig{Redis: s.client, Prefix: events.DefaultNamespace.Locks()}))(s.t)
	proctest.Eventually(s.t, func() bool { return len(proctest.Must(inspector.List(ctx))(s.t)) == 0 }, "no lease is held")
	prefix, changes := string(events.DefaultNamespace), events.DefaultNamespace.Changes()
	keys := []string{stream.DueKey(prefix, changes, events.WorkersGroup)}
	for _, kind := range []string{"tries", "shelf", "labels"} {
		keys = append(keys, prefix+kind+":changes:"+events.WorkersGroup)
	}
	for _, key := range keys {
		if n := proctest.Must(s.client.Exists(ctx, key).Result())(s.t); n != 0 {
			s.t.Errorf("%s is there, want no such key: nothing waits", key)
		}
	}
}
