package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"lockstep/bench"
	"lockstep/events"
	"lockstep/internal/gitserver"
)

const (
	stormAway   = time.Second            // for which Redis is away each time
	stormBreath = 500 * time.Millisecond // for which it is there in between
	stormAgain  = 20                     // each so many deliveries, one is sent twice
)

// hookStorm is a storm of webhooks while it goes on.
type hookStorm struct {
	*hooksBench
	git    *gitserver.Server
	redis  *durableRedis
	bench  *benchRedis
	secret string
	root   string
	repos  []*stormRepo
	sent   atomic.Int64

	mu     sync.Mutex
	pushes map[string]stormPush // that were answered with 202, by their changes' ids
	report hookStormReport
}

// stormRepo is one repository, its commits in order, the first of them before any push.
type stormRepo struct {
	name    string
	commits []string
	index   map[string]int
}

// stormPush is the nth push to a repository, and how many results it has had.
type stormPush struct {
	repo    *stormRepo
	n       int
	results int
}

// hookStormReport is what came of a storm.
type hookStormReport struct {
	Machine    benchMachine  `json:"machine"`
	Deliveries int           `json:"deliveries"`
	Repos      int           `json:"repos"`
	Kills      int           `json:"redis_kills"`
	Down       time.Duration `json:"redis_down_ns"`
	Sending    time.Duration `json:"sending_ns"` // until the last had its answer
	Took       time.Duration `json:"took_ns"`    // until the last had its result
	Latency    bench.Latency `json:"latency"`
	Accepted   int           `json:"accepted"`
	Spooled    int           `json:"spooled"`
	Again      int           `json:"sent_again"`
	Refused    int           `json:"refused"` // answers other than 202; each was sent again
	Fetches    int           `json:"fetches"`
	Unanswered int           `json:"unanswered"`  // deliveries without a result
	Repeated   int           `json:"repeated"`    // with more than one
	Early      int           `json:"early"`       // results of a commit before the push, or none
	Wrong      int           `json:"wrong_trees"` // repositories that are not published at their last push
}

// runStorm has a storm go over real processes.
func (b *hooksBench) runStorm(ctx context.Context, std streams, dir string) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, errors.New("the storm does not end"))
	defer cancel()
	s := &hookStorm{hooksBench: b, secret: uuid.NewString(), root: filepath.Join(dir, "root"), pushes: map[string]stormPush{}}
	if s.git, err = gitserver.Start(filepath.Join(dir, "remote")); err != nil {
		return err
	}
	defer s.git.Close()
	fmt.Fprintf(std.stderr, "make %d repositories\n", b.repos)
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if s.redis, err = startDurableRedis(ctx); err != nil {
		return err
	}
	defer os.RemoveAll(s.redis.dir)
	defer s.redis.kill()
	if s.bench, err = openBenchRedis(ctx, "redis://"+s.redis.addr); err != nil {
		return err
	}
	defer s.bench.Close()
	s.report.Machine, s.report.Deliveries, s.report.Repos = s.bench.machine(), b.storm, b.repos
	urls := make([]string, len(s.repos))
	for i, repo := range s.repos {
		urls[i] = s.git.URL(repo.name)
	}
	if err := watchAll(ctx, s.bench.client, events.DefaultNamespace, urls); err != nil {
		return err
	}
	receiver, err := startHookReceiver(ctx, std, dir, s.secret, "--redis", s.bench.url)
	if err != nil {
		return err
	}
	defer receiver.kill()
	worker, err := startServed(ctx, std.environ, dir, "worker", "serve", "--roles", "worker", "--redis", s.bench.url, "--root", s.root,
		"--listen", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer worker.kill()
	fmt.Fprintf(std.stderr, "send %d deliveries\n", b.storm)
	if err := s.rage(ctx, receiver.addr); err != nil {
		return fmt.Errorf("%w: the receiver says: %s", err, receiver.said())
	}
	fmt.Fprintln(std.stderr, "wait for the results")
	if err := s.settle(ctx); err != nil {
		return fmt.Errorf("%w: the receiver says: %s\nthe worker says: %s", err, receiver.said(), worker.said())
	}
	if err := s.report.print(std.stdout, b.out); err != nil {
		return err
	}
	return s.report.fault()
}

// said is the end of the process's log.
func (p *servedProcess) said() string {
	said, _ := os.ReadFile(p.log)
	if len(said) > 2000 {
		said = said[len(said)-2000:]
	}
	return string(said)
}

// prepare makes the repositories, each with as many commits as it will have pushes, which nobody sees yet.
func (s *hookStorm) prepare(ctx context.Context) error {
	for i := range s.hooksBench.repos {
		repo := &stormRepo{name: fmt.Sprintf("bench/storm-%03d", i), index: map[string]int{}}
		pushes := s.storm / s.hooksBench.repos
		if i < s.storm%s.hooksBench.repos {
			pushes++
		}
		b := pushesBench{pushes: pushes, files: 20}
		commits, err := b.commit(ctx, s.git, repo.name)
		if err != nil {
			return err
		}
		base, err := s.git.Git(ctx, repo.name, "", "rev-parse", commits[0]+"^")
		if err != nil {
			return err
		}
		repo.commits = append([]string{base}, commits...)
		for n, commit := range repo.commits {
			repo.index[commit] = n
		}
		if err := s.push(repo, 0); err != nil {
			return err
		}
		s.repos = append(s.repos, repo)
	}
	return nil
}

// push points the default branch at the nth commit, as git does: no reader sees anything in between.
func (s *hookStorm) push(repo *stormRepo, n int) error {
	path := filepath.Join(s.git.Dir(repo.name), "refs", "heads", gitserver.Main)
	if err := os.WriteFile(path+".lock", []byte(repo.commits[n]+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".lock", path)
}

// rage sends all deliveries, those of a repository in order, and kills Redis twice meanwhile.
func (s *hookStorm) rage(ctx context.Context, addr string) error {
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	var all []time.Duration
	for _, repo := range s.repos {
		g.Go(func() error {
			took, err := s.pushAll(ctx, addr, repo)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			return err
		})
	}
	killed := make(chan error, 1)
	go func() { killed <- s.killRedis(ctx) }()
	err := g.Wait()
	s.report.Sending, s.report.Latency = time.Since(began), bench.NewLatency(all)
	return errors.Join(err, <-killed)
}

// killRedis kills Redis after a third and after two thirds of the deliveries.
func (s *hookStorm) killRedis(ctx context.Context) error {
	for _, after := range []int{s.storm / 3, 2 * s.storm / 3} {
		for s.sent.Load() < int64(after) {
			if !pause(ctx, time.Millisecond) {
				return nil // the senders know why
			}
		}
		down, err := s.redis.restart(context.WithoutCancel(ctx), false, stormAway)
		if err != nil {
			return err
		}
		s.report.Kills++
		s.report.Down += time.Duration(down.To - down.From)
		if !pause(context.WithoutCancel(ctx), stormBreath) {
			return nil
		}
	}
	return nil
}

// pushAll pushes to a repository, and sends the webhook of each push until it is taken.
func (s *hookStorm) pushAll(ctx context.Context, addr string, repo *stormRepo) (took []time.Duration, err error) {
	c, err := dialHooks(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	for n := 1; n < len(repo.commits); n++ {
		if err := s.push(repo, n); err != nil {
			return took, err
		}
		body, err := pushBody(repo.name, s.git.URL(repo.name), repo.commits[n-1], repo.commits[n])
		if err != nil {
			return took, err
		}
		id := uuid.NewString()
		request := pushRequest(body, s.secret, id)
		times := 1
		if n%stormAgain == 0 {
			times = 2
		}
		for sent := 0; sent < times; {
			began := time.Now()
			status, answer, err := c.send(request)
			if err != nil {
				return took, errors.Join(context.Cause(ctx), err)
			}
			took = append(took, time.Since(began))
			if !s.note(repo, n, id, sent > 0, status, answer) {
				if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
					return took, fmt.Errorf("a delivery is answered with %d %s", status, answer)
				}
				if !pause(ctx, 100*time.Millisecond) {
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

// note counts an answer, and reports whether the delivery was taken.
func (s *hookStorm) note(repo *stormRepo, n int, id string, again bool, status int, answer []byte) bool {
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
	s.pushes["hub/"+id+"/0"] = stormPush{repo: repo, n: n}
	return true
}

// settle waits until each delivery has its result, and looks at what is published.
func (s *hookStorm) settle(ctx context.Context) error {
	began := time.Now()
	from, missing := "-", len(s.pushes)
	read := func() error {
		entries, err := s.bench.client.XRange(ctx, events.DefaultNamespace.Results(), from, "+").Result()
		if err != nil {
			return err
		}
		for _, entry := range entries {
			from = "(" + entry.ID
			payload, _ := entry.Values["payload"].(string)
			result, err := events.ParseResult([]byte(payload))
			if err != nil {
				return err
			}
			for _, id := range result.Deliveries {
				push, ok := s.pushes[id]
				if !ok {
					continue // of the look at the remote that a new watch brings
				}
				if push.results++; push.results == 1 {
					missing--
				}
				s.pushes[id] = push
				if at, ok := push.repo.index[result.After]; result.Type != events.ResultSynced || !ok || at < push.n {
					s.report.Early++
				}
			}
		}
		return nil
	}
	for missing > 0 {
		if err := read(); err != nil {
			return err
		}
		if !pause(ctx, 10*time.Millisecond) {
			return fmt.Errorf("%w: %d deliveries have no result", context.Cause(ctx), missing)
		}
	}
	s.report.Took = s.report.Sending + time.Since(began)
	// What is doubled comes after what it doubles: all that is left is worked off first.
	for idle := false; !idle; {
		pending, err := s.bench.client.XPending(ctx, events.DefaultNamespace.Changes(), workers).Result()
		if err != nil {
			return err
		}
		groups, err := s.bench.client.XInfoGroups(ctx, events.DefaultNamespace.Changes()).Result()
		if err != nil {
			return err
		}
		idle = pending.Count == 0 && len(groups) > 0 && groups[0].Lag == 0
		if !idle && !pause(ctx, 10*time.Millisecond) {
			return fmt.Errorf("%w: %d changes are pending", context.Cause(ctx), pending.Count)
		}
	}
	if err := read(); err != nil {
		return err
	}
	for _, push := range s.pushes {
		switch {
		case push.results == 0:
			s.report.Unanswered++
		case push.results > 1:
			s.report.Repeated++
		}
	}
	for _, repo := range s.repos {
		s.report.Fetches += s.git.Stats(repo.name).UploadPacks
		head, err := gitserver.Git(ctx, filepath.Join(s.root, repo.name), "", "rev-parse", "HEAD")
		if err != nil || strings.TrimSpace(head) != repo.commits[len(repo.commits)-1] {
			s.report.Wrong++
		}
	}
	return nil
}

// fault is what must not be.
func (r hookStormReport) fault() error {
	if r.Unanswered+r.Repeated+r.Early+r.Wrong > 0 {
		return fmt.Errorf("%d deliveries have no result, %d have several, %d results are of an earlier commit or none, %d repositories are not at their last push",
			r.Unanswered, r.Repeated, r.Early, r.Wrong)
	}
	return nil
}

func (r hookStormReport) print(w io.Writer, out output) error {
	if !out.isTable() {
		return out.document(w, r)
	}
	fmt.Fprintf(w, "%s\n%d deliveries over %d repositories; Redis killed %d times, away for %.1f s\n\n",
		r.Machine, r.Deliveries, r.Repos, r.Kills, r.Down.Seconds())
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(tw, "all answered after\t%.2f s; p50 %s ms, p99 %s ms, longest %s ms\n", r.Sending.Seconds(), millis(r.Latency.P50), millis(r.Latency.P99), millis(r.Latency.Max))
	fmt.Fprintf(tw, "all published after\t%.2f s, with %d fetches\n", r.Took.Seconds(), r.Fetches)
	fmt.Fprintf(tw, "taken by Redis at once\t%d\n", r.Accepted)
	fmt.Fprintf(tw, "kept on disk meanwhile\t%d\n", r.Spooled)
	fmt.Fprintf(tw, "sent twice\t%d\n", r.Again)
	fmt.Fprintf(tw, "refused, and sent again\t%d\n", r.Refused)
	fmt.Fprintf(tw, "without a result\t%d\n", r.Unanswered)
	fmt.Fprintf(tw, "with more than one\t%d\n", r.Repeated)
	fmt.Fprintf(tw, "with an earlier commit\t%d\n", r.Early)
	fmt.Fprintf(tw, "repositories not at their last push\t%d\n", r.Wrong)
	return tw.Flush()
}
