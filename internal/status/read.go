package status

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/feed"
	"lockstep/internal/hosts"
	"lockstep/internal/notify"
	"lockstep/internal/redisx"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/watch"
	"lockstep/locking"
)

const (
	searchTimeout = 250 * time.Millisecond // for leases, and again for failures
	searchAgain   = 10 * time.Second
	maxListed     = 20
	maxLetters    = 200
	rateWindow    = time.Minute
	rateEntries   = 100
	longWait      = 5 * time.Minute // an older unsettled entry is a problem
)

var (
	//go:embed rate.lua
	rateSource string
	rateScript = redis.NewScript(rateSource)
)

// Read returns the state of a service.
func Read(ctx context.Context, client redis.UniversalClient, cfg config.Config) (Service, error) {
	return (&Reader{Redis: client, Config: cfg}).Read(ctx)
}

// Reader reads the state of a service repeatedly. The cost of a read does not depend on the size of the service: it searches for
// leases and failures for a limited time. If the search was incomplete, it reuses the findings for a while.
type Reader struct {
	Redis  redis.UniversalClient
	Config config.Config
	Search time.Duration // time to search for leases, and again for failures; defaults to 250 ms

	searched time.Time
	leases   leaseStatus
	repos    failureStatus
}

// Read returns the state of the service.
func (r *Reader) Read(ctx context.Context) (Service, error) {
	client, cfg, namespace := r.Redis, r.Config, r.Config.Namespace()
	redisServer, err := cfg.RedisServer()
	if err != nil {
		return Service{}, err
	}
	s := Service{Redis: redisServer.String(), Prefix: cfg.Prefix, Durability: redisx.ReadDurability(ctx, client, cfg.Prefix)}
	store := state.NewStore(client, namespace)
	for _, read := range []func() error{
		func() error { return s.readStreams(ctx, client, cfg) },
		func() (err error) { s.Settled, s.now, err = readRate(ctx, client, namespace.Results()); return },
		func() (err error) { s.Activities, err = store.Activities(ctx); return },
		func() error { return r.search(ctx, store, s.Activities) },
		func() (err error) { s.DeadReasons, err = readReasons(ctx, client, cfg, s.Dead); return },
		func() (err error) { s.Notifications, err = notify.Waiting(ctx, client, namespace); return },
		func() error { return s.readFailingApps(ctx, notify.Outboxes{Redis: client, Namespace: namespace}) },
		func() (err error) { s.Watched, err = watch.NewRegistry(client, namespace).Count(ctx); return },
		func() error { return s.readHosts(ctx, app.ReadHosts(cfg, client)) },
		func() (err error) { s.Volume, err = readVolume(ctx, client, cfg); return },
		func() (err error) {
			s.Followers, err = feed.NewFollowers(client, cfg.Cell, namespace, cfg.Shared()).List(ctx)
			return
		},
	} {
		if err := read(); err != nil {
			return Service{}, err
		}
	}
	s.Leases, s.Repos = r.leases, r.repos
	s.Activities = append([]state.Activity{}, s.Activities...) // [] instead of null in JSON
	s.judge()
	return s, nil
}

// search looks for leases and failures, unless a recent search was incomplete.
func (r *Reader) search(ctx context.Context, store *state.Store, activities []state.Activity) (err error) {
	if (!r.leases.Complete || !r.repos.Complete) && time.Since(r.searched) < searchAgain {
		return nil
	}
	if r.leases, err = r.readLeases(ctx, activities); err != nil {
		return err
	}
	r.repos, err = readFailures(ctx, store, cmp.Or(r.Search, searchTimeout))
	r.searched = time.Now()
	return err
}

func (s *Service) readFailingApps(ctx context.Context, boxes notify.Outboxes) error {
	n, apps, err := boxes.Failing(ctx)
	s.FailingBoxes, s.FailingApps = n, append([]string{}, apps...) // [] instead of null in JSON
	return err
}

func (s *Service) readStreams(ctx context.Context, client redis.UniversalClient, cfg config.Config) error {
	namespace := cfg.Namespace()
	changes, err := stream.Stats(ctx, client, cfg.Prefix, namespace.Changes())
	if err != nil {
		return err
	}
	results, err := stream.Stats(ctx, client, cfg.Prefix, namespace.Results())
	if err != nil {
		return err
	}
	s.Changes, s.Results, s.Dead = changes.Length, results.Length, changes.Dead
	s.Unread = changes.Length // no worker has created the group yet
	if g, ok := changes.Group(events.WorkersGroup); ok {
		s.Unread, s.Pending, s.Workers = g.Lag, g.Pending, g.Live
		s.Due, s.Late, s.OldestMS = g.Due, g.Late, g.Oldest.Milliseconds()
	}
	s.Groups = []groupStatus{}
	for _, one := range []stream.Statistics{changes, results} {
		for _, g := range one.Groups {
			s.Groups = append(s.Groups, groupStatus{one.Stream, g.Name, g.Lag, g.Pending, g.Late, g.Consumers, g.Live, g.Oldest.Milliseconds()})
		}
	}
	return nil
}

func readRate(ctx context.Context, client redis.UniversalClient, topic string) (rate, time.Time, error) {
	reply, err := rateScript.Run(ctx, client, []string{topic}, rateWindow.Milliseconds(), rateEntries).Int64Slice()
	if err != nil {
		return rate{}, time.Time{}, fmt.Errorf("read the rate of %s: %w", topic, err)
	}
	if len(reply) != 3 {
		return rate{}, time.Time{}, errors.New("rate.lua: unexpected reply")
	}
	now, n, oldest := reply[0], reply[1], reply[2]
	r := rate{Results: n, OverMS: rateWindow.Milliseconds()}
	if n == rateEntries {
		r.OverMS = max(1, now-oldest)
	}
	r.PerSecond = float64(n) * 1000 / float64(r.OverMS)
	return r, time.UnixMilli(now), nil
}

// readLeases searches for held leases. If there are too many keys, it reads those of activities only.
func (r *Reader) readLeases(ctx context.Context, activities []state.Activity) (leaseStatus, error) {
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: r.Redis, Prefix: r.Config.Namespace().Locks()})
	if err != nil {
		return leaseStatus{}, err
	}
	searching, cancel := context.WithTimeout(ctx, cmp.Or(r.Search, searchTimeout))
	defer cancel()
	held, err := inspector.List(searching)
	s := leaseStatus{Complete: err == nil, Contended: []server.Lock{}}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && ctx.Err() == nil {
		held, err = leasesOf(ctx, inspector, activities)
	}
	if err != nil {
		return leaseStatus{}, err
	}
	s.Held = len(held)
	for _, lock := range held {
		if len(lock.Waiters) > 0 {
			s.Contended = append(s.Contended, server.NewLock(lock))
		}
	}
	slices.SortStableFunc(s.Contended, func(a, b server.Lock) int { return cmp.Compare(len(b.Waiters), len(a.Waiters)) })
	s.Contended = s.Contended[:min(len(s.Contended), maxListed)]
	return s, nil
}

// leasesOf returns the leases of activities, up to a limit.
func leasesOf(ctx context.Context, inspector *locking.Inspector, activities []state.Activity) ([]locking.Status, error) {
	var held []locking.Status
	for _, activity := range activities[:min(len(activities), 5*maxListed)] {
		repo, err := events.ParseRepoPath(activity.Repo)
		if err != nil {
			continue // not a lease of a worker
		}
		lock, err := inspector.Status(ctx, repo.Key())
		if err != nil {
			return nil, err
		}
		if lock.Held {
			held = append(held, lock)
		}
	}
	return held, nil
}

// readFailures searches for failing repositories until the timeout.
func readFailures(ctx context.Context, store *state.Store, timeout time.Duration) (failureStatus, error) {
	s := failureStatus{Worst: []server.RepoSummary{}}
	failing, refused, lacking, leaving := map[string]server.RepoSummary{}, map[string]server.RepoSummary{}, map[string]server.RepoSummary{}, map[string]server.RepoSummary{} // a repository may be on two pages
	for cursor, until := uint64(0), time.Now().Add(timeout); ; {
		page, err := store.List(ctx, "", cursor, 1000)
		if err != nil {
			return s, err
		}
		s.Looked += len(page.Repos)
		for _, repo := range page.Repos {
			if repo.Circuit.Failures > 0 || repo.Circuit.Trips > 0 || len(repo.Failing) > 0 {
				failing[repo.Repo] = server.NewRepoSummary(repo)
			}
			if len(repo.Refused) > 0 {
				refused[repo.Repo] = server.NewRepoSummary(repo)
			}
			if len(repo.Missing) > 0 {
				lacking[repo.Repo] = server.NewRepoSummary(repo)
			}
			if len(repo.LeftOut) > 0 {
				leaving[repo.Repo] = server.NewRepoSummary(repo)
			}
		}
		if cursor = page.Next; cursor == 0 || time.Now().After(until) {
			s.Complete = cursor == 0
			break
		}
	}
	s.Failing = len(failing)
	for _, repo := range failing {
		if repo.Circuit.Phase == state.CircuitOpen {
			s.Open++
		}
		s.Worst = append(s.Worst, repo)
	}
	slices.SortFunc(s.Worst, func(a, b server.RepoSummary) int {
		return cmp.Or(cmp.Compare(b.Circuit.Failures, a.Circuit.Failures), failedAt(b).Compare(failedAt(a)), cmp.Compare(a.Repo, b.Repo))
	})
	s.Worst = s.Worst[:min(len(s.Worst), maxListed)]
	s.Refused, s.Refusing = firstByPath(refused), len(refused)
	s.Missing, s.Lacking = firstByPath(lacking), len(lacking)
	s.LeftOut = firstByPath(leaving)
	return s, nil
}

// failedAt returns the time of the last failure, or the zero time.
func failedAt(r server.RepoSummary) time.Time {
	if len(r.Failing) == 0 {
		return time.Time{}
	}
	return r.Failing[0].At
}

func firstByPath(repos map[string]server.RepoSummary) []server.RepoSummary {
	listed := []server.RepoSummary{}
	for _, name := range slices.Sorted(maps.Keys(repos))[:min(len(repos), maxListed)] {
		listed = append(listed, repos[name])
	}
	return listed
}

func (s *Service) readHosts(ctx context.Context, reader hosts.Reader) error {
	all, err := reader.List(ctx)
	s.Hosts, s.local = server.NewHosts(all), time.Now()
	server.SortHosts(s.Hosts)
	return err
}

func readReasons(ctx context.Context, client redis.UniversalClient, cfg config.Config, letters int64) (map[string]int, error) {
	reasons := map[string]int{}
	if letters == 0 {
		return reasons, nil
	}
	dead, err := stream.NewDeadLetters(stream.DeadLettersConfig{Redis: client, Prefix: cfg.Prefix, Dead: cfg.Namespace().Dead()})
	if err != nil {
		return nil, err
	}
	page, err := dead.List(ctx, stream.Query{Limit: maxLetters})
	for _, letter := range page.Letters {
		reasons[term.Printable(letter.Reason)]++
	}
	return reasons, err
}

// readVolume returns the registered volume, with its free space if it is mounted here.
func readVolume(ctx context.Context, client redis.UniversalClient, cfg config.Config) (*volumeStatus, error) {
	id, err := client.Get(ctx, cfg.Namespace().Volume()).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil // no worker has started yet
	}
	if err != nil {
		return nil, err
	}
	s := &volumeStatus{ID: id}
	volume, err := app.ViewVolume(ctx, cfg, client)
	if err != nil || volume == nil {
		return s, err
	}
	space, err := volume.Space()
	if err == nil {
		s.Root, s.Free, s.Size = volume.Root(), space.Free, space.Size
	}
	return s, nil // an unknown size does not fail the status
}

// limitedHosts returns the number of hosts that limit a credential or do not answer.
func (s *Service) limitedHosts() int {
	n := 0
	for _, h := range s.Hosts {
		if h.Until != nil {
			n++
		}
	}
	return n
}

// judge sets Health and Concerns.
func (s *Service) judge() {
	s.Concerns = []string{}
	concern := func(format string, args ...any) { s.Concerns = append(s.Concerns, fmt.Sprintf(format, args...)) }
	if s.Workers == 0 {
		concern("no worker takes changes")
	}
	for _, g := range s.Groups {
		if waited := time.Duration(g.OldestMS) * time.Millisecond; waited > longWait {
			concern("group %s has not settled an entry for %s", term.Printable(g.Group), Duration(waited))
		}
	}
	if n := s.limitedHosts(); n > 0 {
		concern("hosts limited: %d", n)
	}
	if s.Repos.Open > 0 {
		concern("circuits open: %d", s.Repos.Open)
	}
	if s.Repos.Failing > 0 {
		concern("repositories failing: %d", s.Repos.Failing)
	}
	if s.Repos.Refusing > 0 {
		concern("commits refused: %d", s.Repos.Refusing)
	}
	if s.FailingBoxes > 0 {
		concern("notifications failing: %d", s.FailingBoxes)
	}
	if s.Dead > 0 {
		concern("dead letters: %d", s.Dead)
	}
	if v := s.Volume; v != nil && v.Size > 0 && v.Free < v.Size/20 {
		concern("the volume is nearly full")
	}
	s.Health = "ok"
	if len(s.Concerns) > 0 {
		s.Health = "attention"
	}
}
