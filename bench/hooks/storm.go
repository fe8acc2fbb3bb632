package hooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/stats"
)

const (
	stormAway  = time.Second            // how long Redis is down each time
	stormPause = 500 * time.Millisecond // minimum time that Redis is up in between
	stormTwice = 20                     // one of this many deliveries is sent twice
)

// storm is a storm of webhooks in progress.
type storm struct {
	*bench
	git    *gitserver.Server
	redis  *rig.Redis
	secret string
	root   string
	repos  []*stormRepo
	sent   atomic.Int64

	mu      sync.Mutex
	pushes  map[string]stormPush // answered with 202, by the change's ID
	results rig.Results          // of these
	report  StormReport
}

// stormRepo is one repository with its commits in order. The first commit is the one before any push.
type stormRepo struct {
	name    string
	commits []string
}

// stormPush is the nth push to a repository.
type stormPush struct {
	repo *stormRepo
	n    int
}

// StormReport is the outcome of a storm.
type StormReport struct {
	Machine    rig.Machine   `json:"machine"`
	Deliveries int           `json:"deliveries"`
	Repos      int           `json:"repos"`
	Kills      int           `json:"redis_kills"`
	Down       time.Duration `json:"redis_down_ns"`
	Sending    time.Duration `json:"sending_ns"` // until the last response
	Took       time.Duration `json:"took_ns"`    // until the last result
	Latency    stats.Latency `json:"latency"`
	Accepted   int           `json:"accepted"`
	Spooled    int           `json:"spooled"`
	Again      int           `json:"sent_again"`
	Refused    int           `json:"refused"` // answers other than 202, each retried
	Fetches    int           `json:"fetches"`
	Unanswered int           `json:"unanswered"`  // deliveries without a result
	Repeated   int           `json:"repeated"`    // deliveries with several results
	Early      int           `json:"early"`       // results with a commit older than the push, or without one
	Wrong      int           `json:"wrong_trees"` // repositories that are not published at their last push
}

// runStorm runs a storm over real processes.
func (b *bench) runStorm(ctx context.Context, env *rig.Env) (report rig.Report, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, errors.New("storm did not end in time"))
	defer cancel()
	s := &storm{bench: b, secret: uuid.NewString(), root: filepath.Join(env.Dir, "root"), pushes: map[string]stormPush{}, results: rig.Results{}}
	if s.git, err = env.StartGit(); err != nil {
		return nil, err
	}
	env.Progress("making %d repositories", b.repos)
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	if s.redis, err = env.OpenDurableRedis(ctx); err != nil {
		return nil, err
	}
	s.report.Machine, s.report.Deliveries, s.report.Repos = s.redis.Machine(), b.storm, b.repos
	urls := make([]string, len(s.repos))
	for i, repo := range s.repos {
		urls[i] = s.git.URL(repo.name)
	}
	if err := rig.WatchAll(ctx, s.redis.Client, events.DefaultNamespace, urls); err != nil {
		return nil, err
	}
	receiver, addr, err := startReceiver(ctx, env, s.redis, events.DefaultNamespace, s.secret)
	if err != nil {
		return nil, err
	}
	worker, _, err := env.Serve(ctx, "--roles", "worker", "--redis", s.redis.URL, "--root", s.root)
	if err != nil {
		return nil, err
	}
	env.Progress("sending %d deliveries", b.storm)
	if err := s.rage(ctx, addr); err != nil {
		return nil, fmt.Errorf("%w: receiver: %s", err, receiver.Log())
	}
	env.Progress("waiting for the results")
	if err := s.settle(ctx); err != nil {
		return nil, fmt.Errorf("%w: receiver: %s\nworker: %s", err, receiver.Log(), worker.Log())
	}
	return s.report, nil
}

// prepare makes the repositories, each with as many commits as it will have pushes, none of them on the default branch yet.
func (s *storm) prepare(ctx context.Context) error {
	for i := range s.bench.repos {
		repo := &stormRepo{name: fmt.Sprintf("bench/storm-%03d", i)}
		count := s.bench.storm / s.bench.repos
		if i < s.bench.storm%s.bench.repos {
			count++
		}
		commits, err := rig.CommitPushes(ctx, s.git, repo.name, 20, count)
		if err != nil {
			return err
		}
		base, err := s.git.Git(ctx, repo.name, "", "rev-parse", commits[0]+"^")
		if err != nil {
			return err
		}
		repo.commits = append([]string{base}, commits...)
		if err := s.push(repo, 0); err != nil {
			return err
		}
		s.repos = append(s.repos, repo)
	}
	return nil
}

// push points the default branch at the nth commit, atomically, as git does.
func (s *storm) push(repo *stormRepo, n int) error {
	path := filepath.Join(s.git.Dir(repo.name), "refs", "heads", gitserver.Main)
	if err := os.WriteFile(path+".lock", []byte(repo.commits[n]+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".lock", path)
}

// rage sends all deliveries, in order for each repository, and kills Redis twice meanwhile.
func (s *storm) rage(ctx context.Context, addr string) error {
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	each := make([][]time.Duration, len(s.repos))
	for i, repo := range s.repos {
		g.Go(func() (err error) {
			each[i], err = s.pushAll(ctx, addr, repo)
			return err
		})
	}
	killed := make(chan error, 1)
	go func() { killed <- s.killRedis(ctx) }()
	err := g.Wait()
	s.report.Sending, s.report.Latency = time.Since(began), stats.NewLatency(slices.Concat(each...))
	return errors.Join(err, <-killed)
}

// killRedis kills Redis after a third and after two thirds of the deliveries.
func (s *storm) killRedis(ctx context.Context) error {
	n := int64(s.bench.storm)
	for _, after := range []int64{n / 3, 2 * n / 3} {
		if rig.AwaitCount(ctx, after, time.Millisecond, func() (int64, error) { return s.sent.Load(), nil }) != nil {
			return nil // the senders return the cause
		}
		down, err := s.redis.Restart(context.WithoutCancel(ctx), false, stormAway)
		if err != nil {
			return err
		}
		s.report.Kills++
		s.report.Down += time.Duration(down.To - down.From)
		time.Sleep(stormPause)
	}
	return nil
}

// pushAll pushes to a repository, and sends the webhook of each push until it is accepted.
func (s *storm) pushAll(ctx context.Context, addr string, repo *stormRepo) (took []time.Duration, err error) {
	c, err := Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for n := 1; n < len(repo.commits); n++ {
		if err := s.push(repo, n); err != nil {
			return took, err
		}
		body, err := PushBody(repo.name, s.git.URL(repo.name), repo.commits[n-1], repo.commits[n])
		if err != nil {
			return took, err
		}
		id := uuid.NewString()
		request := PushRequest(body, s.secret, id)
		times := 1
		if n%stormTwice == 0 {
			times = 2
		}
		for sent := 0; sent < times; {
			began := time.Now()
			status, answer, err := c.Send(request)
			if err != nil {
				return took, errors.Join(context.Cause(ctx), err)
			}
			took = append(took, time.Since(began))
			if !s.record(repo, n, id, sent > 0, status, answer) {
				if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
					return took, fmt.Errorf("delivery answered with %d %s", status, answer)
				}
				if !app.Sleep(ctx, 100*time.Millisecond) {
					return took, context.Cause(ctx)
				}
				continue
			}
			sent++
		}
		s.sent.Add(1)
	}
	return took, nil
}

// record counts a response, and reports whether the delivery was accepted.
func (s *storm) record(repo *stormRepo, n int, id string, again bool, status int, answer []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case status != http.StatusAccepted:
		s.report.Refused++
		return false
	case again:
		s.report.Again++
		return true
	case bytes.Contains(answer, []byte(`"spooled":true`)):
		s.report.Spooled++
	default:
		s.report.Accepted++
	}
	change := "hub/" + id + "/0"
	s.pushes[change], s.results[change] = stormPush{repo, n}, 0
	return true
}

// settle waits for the result of each delivery, and checks the published trees.
func (s *storm) settle(ctx context.Context) error {
	began := time.Now()
	from := ""
	err := rig.AwaitCount(ctx, int64(len(s.pushes)), 10*time.Millisecond, func() (answered int64, err error) {
		from, err = s.readResults(ctx, from)
		unanswered, _ := s.results.Count()
		return int64(len(s.pushes) - unanswered), err
	})
	if err != nil {
		return fmt.Errorf("await the results: %w", err)
	}
	s.report.Took = s.report.Sending + time.Since(began)
	if err := s.awaitIdle(ctx); err != nil { // a second result would follow the first one
		return err
	}
	if _, err := s.readResults(ctx, from); err != nil {
		return err
	}
	s.report.Unanswered, s.report.Repeated = s.results.Count()
	for _, repo := range s.repos {
		s.report.Fetches += s.git.Stats(repo.name).UploadPacks
		head, err := gitserver.Git(ctx, filepath.Join(s.root, repo.name), "", "rev-parse", "HEAD")
		if err != nil || strings.TrimSpace(head) != repo.commits[len(repo.commits)-1] {
			s.report.Wrong++
		}
	}
	return nil
}

// readResults counts the results after the entry with ID from, and returns the ID of the last entry.
func (s *storm) readResults(ctx context.Context, from string) (string, error) {
	results, from, err := rig.ReadResults(ctx, s.redis.Client, events.DefaultNamespace, from)
	for _, result := range results {
		for _, id := range result.Deliveries {
			push, ok := s.pushes[id]
			if !ok {
				continue // the poll after a new watch
			}
			s.results[id]++
			if result.Type != events.ResultSynced || slices.Index(push.repo.commits, result.After) < push.n {
				s.report.Early++
			}
		}
	}
	return from, err
}

// awaitIdle waits until no change is pending.
func (s *storm) awaitIdle(ctx context.Context) error {
	for {
		groups, err := s.redis.Client.XInfoGroups(ctx, events.DefaultNamespace.Changes()).Result()
		if err != nil {
			return err
		}
		if len(groups) > 0 && groups[0].Pending == 0 && groups[0].Lag == 0 {
			return nil
		}
		if !app.Sleep(ctx, 10*time.Millisecond) {
			return fmt.Errorf("%w: changes are still pending", context.Cause(ctx))
		}
	}
}

// Verdict returns an error unless each delivery has exactly one result, and the right one.
func (r StormReport) Verdict() error {
	return rig.Faults(rig.Fault{What: "deliveries without a result", Count: r.Unanswered},
		rig.Fault{What: "deliveries with several results", Count: r.Repeated},
		rig.Fault{What: "results of an earlier commit or none", Count: r.Early},
		rig.Fault{What: "repositories that are not at their last push", Count: r.Wrong})
}

// Table prints the report as text.
func (r StormReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%d deliveries over %d repositories; Redis killed %d times, away for %.1f s\n\n",
		r.Machine, r.Deliveries, r.Repos, r.Kills, r.Down.Seconds())
	list := rig.NewList(w)
	fmt.Fprintf(list, "all answered after\t%.2f s; p50 %s ms, p99 %s ms, longest %s ms\n",
		r.Sending.Seconds(), rig.Millis(r.Latency.P50), rig.Millis(r.Latency.P99), rig.Millis(r.Latency.Max))
	fmt.Fprintf(list, "all published after\t%.2f s, with %d fetches\n", r.Took.Seconds(), r.Fetches)
	for _, row := range []rig.Fault{
		{What: "accepted by Redis at once", Count: r.Accepted}, {What: "spooled to disk", Count: r.Spooled}, {What: "sent twice", Count: r.Again},
		{What: "refused, and retried", Count: r.Refused}, {What: "without a result", Count: r.Unanswered}, {What: "with several results", Count: r.Repeated},
		{What: "with an earlier commit", Count: r.Early}, {What: "repositories not at their last push", Count: r.Wrong},
	} {
		fmt.Fprintf(list, "%s\t%d\n", row.What, row.Count)
	}
	return list.Flush()
}
