package status

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/feed"
	"lockstep/internal/hosts"
	"lockstep/internal/intake"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/redisx"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/term"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

const (
	searchTimeout = 250 * time.Millisecond // for leases, and again for failures
	maxListed     = 20
	maxJudged     = 1000
	maxLetters    = 200
	rateWindow    = time.Minute
	rateEntries   = 100     // results within rateWindow that are read
	rateBytes     = 2 << 20 // their approximate size
)

func read(
	ctx context.Context, client redis.UniversalClient, cfg config.Config, volume *volume.Volume, search time.Duration,
) (Service, error) {
	namespace := cfg.Namespace()
	redisServer, err := cfg.RedisServer()
	if err != nil {
		return Service{}, err
	}
	s := Service{
		Redis: redisServer.String(), Prefix: cfg.Prefix, Durability: redisx.ReadDurability(ctx, client, cfg.Prefix),
	}
	store := state.NewStore(client, namespace)
	for _, read := range []func() error{
		func() error { return s.readStreams(ctx, client, cfg) },
		func() (err error) { s.Settled, s.now, err = readRate(ctx, client, namespace.Results()); return },
		func() error { return s.readAway(ctx, client, namespace, cfg.Grace) },
		func() (err error) { s.Activities, err = store.Activities(ctx); return },
		func() (err error) { s.Leases, err = readLeases(ctx, client, namespace, s.Activities, search); return },
		func() (err error) { s.Repos, err = readFailures(ctx, store, search); return },
		func() (err error) { s.DeadReasons, err = readReasons(ctx, client, cfg, s.Dead); return },
		func() (err error) { s.Notifications, err = notify.Waiting(ctx, client, namespace); return },
		func() error { return s.readFailingApps(ctx, notify.Outboxes{Redis: client, Namespace: namespace}) },
		func() (err error) { s.Watched, err = watch.NewRegistry(client, namespace).Count(ctx); return },
		func() (err error) {
			if schedule.Backlog(s.Unread, s.Late) > schedule.MaxBacklog {
				return nil // schedulers pause
			}
			s.unasked.Repos, s.unasked.Since, err = watch.NewRegistry(client, namespace).Overdue(ctx, cfg.PollEvery > 0)
			return err
		},
		func() error { return s.readUnwatched(ctx, client, namespace) },
		func() error {
			all, err := hosts.Reader{Redis: client, Prefix: string(cfg.Shared())}.List(ctx)
			s.Hosts, s.local = hosts.Busy(all), time.Now()
			return err
		},
		func() (err error) { s.Volume, err = readVolume(ctx, client, namespace, volume); return },
		func() (err error) {
			s.Followers, err = feed.NewFollowers(client, cfg.Cell, namespace, cfg.Shared()).List(ctx)
			return
		},
	} {
		if err := read(); err != nil {
			return Service{}, err
		}
	}
	s.Activities = append([]state.Activity{}, s.Activities...) // [] instead of null in JSON
	s.judge()
	return s, nil
}

func (s *Service) readFailingApps(ctx context.Context, boxes notify.Outboxes) error {
	n, apps, err := boxes.Failing(ctx)
	s.FailingBoxes, s.FailingApps = n, append([]string{}, apps...) // [] instead of null in JSON
	return err
}

func (s *Service) readUnwatched(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) error {
	n, repos, err := intake.Unwatched(ctx, client, namespace, s.now.Add(-time.Hour))
	repos = append([]string{}, repos[:min(len(repos), maxListed)]...) // [] instead of null in JSON
	s.Unwatched = unwatchedStatus{n, repos}
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
		s.Parked, s.Late, s.OldestMS = g.Parked, g.Late, g.Oldest.Milliseconds()
	}
	s.Groups = operate.GroupsOf(changes, results)
	return nil
}

func (s *Service) readAway(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, grace time.Duration,
) error {
	workers := operate.Workers{Cells: cells.Single(client, cells.Member{Namespace: namespace}), Grace: grace}
	all, _, err := workers.List(ctx)
	s.Away = slices.DeleteFunc(all, func(w operate.Worker) bool { return w.Live })
	return err
}

func readRate(ctx context.Context, client redis.UniversalClient, topic string) (r rate, now time.Time, err error) {
	if now, err = stream.Time(ctx, client, topic); err != nil {
		return rate{}, now, err
	}
	r.OverMS = rateWindow.Milliseconds()
	bytes, since := 0, strconv.FormatInt(now.Add(-rateWindow).UnixMilli(), 10)
	for e, err := range stream.NewReader(client).Backward(ctx, topic, "+", since) {
		if err != nil {
			return rate{}, now, err
		}
		r.Results, bytes = r.Results+1, bytes+stream.Size(e)
		if r.Results == rateEntries || bytes >= rateBytes {
			r.OverMS = max(1000, now.Sub(events.EntryTime(e.ID)).Milliseconds())
			break
		}
	}
	r.PerSecond = float64(r.Results) * 1000 / float64(r.OverMS)
	return r, now, nil
}

// readLeases searches for held leases. If there are too many keys, it reads those of activities only.
func readLeases(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, activities []state.Activity,
	search time.Duration,
) (leaseStatus, error) {
	leases := &operate.Leases{Cells: cells.Single(client, cells.Member{Namespace: namespace})}
	searching, cancel := context.WithTimeout(ctx, search)
	defer cancel()
	held, _, err := leases.List(searching)
	s := leaseStatus{Complete: err == nil, Contended: []operate.Lease{}}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && ctx.Err() == nil {
		held, err = leasesOf(ctx, leases, activities)
	}
	if err != nil {
		return leaseStatus{}, err
	}
	s.Held = len(held)
	for _, lease := range held {
		if len(lease.Waiters) > 0 {
			s.Contended = append(s.Contended, lease)
		}
	}
	slices.SortStableFunc(s.Contended, func(a, b operate.Lease) int { return cmp.Compare(len(b.Waiters), len(a.Waiters)) })
	s.Contended = s.Contended[:min(len(s.Contended), maxListed)]
	return s, nil
}

// leasesOf returns the leases of activities, up to a limit.
func leasesOf(
	ctx context.Context, leases *operate.Leases, activities []state.Activity,
) (held []operate.Lease, err error) {
	for _, activity := range activities[:min(len(activities), 5*maxListed)] {
		repo, err := events.ParseRepoPath(activity.Repo)
		if err != nil {
			continue // not a lease of a worker
		}
		lease, err := leases.Get(ctx, "", repo)
		if err != nil {
			return nil, err
		}
		if lease.Held {
			held = append(held, lease)
		}
	}
	return held, nil
}

// readFailures searches for failing repositories until the timeout.
func readFailures(ctx context.Context, store *state.Store, timeout time.Duration) (failureStatus, error) {
	var s failureStatus
	failing, err := store.Failing(ctx, maxJudged) // all of them, however many keys Redis has
	if err != nil {
		return s, err
	}
	s.judged, s.more = failing.Repos, failing.Total-int64(len(failing.Repos))
	seen := map[string]bool{} // a repository may be on two pages
	add := func(list *[]operate.RepoSummary, repo state.Summary, listed bool) {
		if listed {
			*list = append(*list, operate.NewRepoSummary(repo))
		}
	}
	known := map[string]bool{}
	for _, repo := range failing.Repos {
		known[repo.Repo] = true
		add(&s.Worst, repo, true)
		if repo.Circuit.Phase() == state.CircuitOpen {
			s.Open++
		}
	}
	for cursor, until := uint64(0), time.Now().Add(timeout); ; {
		page, err := store.List(ctx, "", cursor, 1000)
		if err != nil {
			return s, err
		}
		s.Looked += len(page.Repos)
		for _, repo := range page.Repos {
			if seen[repo.Repo] {
				continue
			}
			seen[repo.Repo] = true
			if len(repo.Refused) > 0 && !known[repo.Repo] {
				s.judged = append(s.judged, repo)
			}
			isFailing := repo.Circuit.Failures > 0 || repo.Circuit.Trips > 0 || len(repo.Failing) > 0
			add(&s.Worst, repo, isFailing && !known[repo.Repo])
			add(&s.Refused, repo, len(repo.Refused) > 0)
			add(&s.Missing, repo, len(repo.Missing) > 0)
			add(&s.LeftOut, repo, len(repo.LeftOut) > 0)
			if repo.Circuit.Phase() == state.CircuitOpen && !known[repo.Repo] {
				s.Open++
			}
		}
		if cursor = page.Next; cursor == 0 || time.Now().After(until) {
			s.Complete = cursor == 0
			break
		}
	}
	s.Failing, s.Refusing, s.Lacking = max(len(s.Worst), int(failing.Total)), len(s.Refused), len(s.Missing)
	slices.SortFunc(s.Worst, func(a, b operate.RepoSummary) int {
		return cmp.Or(cmp.Compare(b.InARow(), a.InARow()), failedAt(b).Compare(failedAt(a)),
			cmp.Compare(a.Repo, b.Repo))
	})
	for _, list := range []*[]operate.RepoSummary{&s.Refused, &s.Missing, &s.LeftOut} {
		slices.SortFunc(*list, func(a, b operate.RepoSummary) int { return cmp.Compare(a.Repo, b.Repo) })
	}
	for _, list := range []*[]operate.RepoSummary{&s.Worst, &s.Refused, &s.Missing, &s.LeftOut} {
		*list = append([]operate.RepoSummary{}, (*list)[:min(len(*list), maxListed)]...) // [] instead of null in JSON
	}
	return s, nil
}

// failedAt returns the time of the last failure, or the zero time.
func failedAt(r operate.RepoSummary) time.Time {
	if len(r.Failing) == 0 {
		return time.Time{}
	}
	return r.Failing[0].At
}

func readReasons(
	ctx context.Context, client redis.UniversalClient, cfg config.Config, letters int64,
) (map[string]int, error) {
	reasons := map[string]int{}
	if letters == 0 {
		return reasons, nil
	}
	dead := stream.NewDeadLetters(client, cfg.Prefix)
	newest, _, err := dead.List(ctx, stream.Query{Limit: maxLetters})
	for _, letter := range newest {
		reasons[term.Printable(letter.Reason)]++
	}
	return reasons, err
}

// readVolume returns the registered volume, with its free space if it is mounted here.
func readVolume(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, volume *volume.Volume,
) (*volumeStatus, error) {
	id, err := client.Get(ctx, namespace.Volume()).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil // no worker has started yet
	}
	if err != nil {
		return nil, err
	}
	s := &volumeStatus{ID: id}
	if volume == nil {
		return s, nil
	}
	space, err := volume.Space()
	if err != nil {
		return s, nil // an unknown size does not fail the status
	}
	s.Root, s.Free, s.Size = volume.Root(), space.Free, space.Size
	return s, nil
}

// judge sets the verdict.
func (s *Service) judge() {
	facts := operate.Facts{
		Watched: s.Watched, Workers: s.Workers, Dead: s.Dead, Hosts: s.Hosts, Boxes: s.FailingBoxes, Apps: s.FailingApps,
		Lost:    s.Away,
		Failing: s.Repos.judged, More: s.Repos.more, Unasked: s.unasked, Groups: s.Groups,
		Full: s.Volume != nil && operate.NearlyFull(s.Volume.Free, s.Volume.Size),
	}
	s.Verdict = facts.Verdict()
}
