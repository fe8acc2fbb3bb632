package hosts_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/git"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

var robot = hosts.Target{Host: forge, Credential: "robot"}

// open returns a limiter with a Redis of its own.
func open(t *testing.T, server *redistest.Server) *hosts.Limiter {
	t.Helper()
	return testenv.Must(hosts.New(hosts.Config{Redis: server.Client(), Prefix: prefix}))(t)
}

// ask sends one request with an answer.
func ask(t *testing.T, l *hosts.Limiter, repo string, a wire.Answer) error {
	t.Helper()
	j := l.Job(repo, false)
	defer j.Leave(t.Context())
	done, err := j.With("robot").Acquire(t.Context(), forge)
	if err == nil {
		done(a)
	}
	return err
}

// mustWait checks the error of a job that must wait because the host has limited its credential.
func mustWait(t *testing.T, err error) (after time.Duration) {
	t.Helper()
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	if events.ClassOf(errors.Unwrap(err)) != events.ClassBusy || !strings.Contains(err.Error(), string(hosts.RateLimit)) {
		t.Errorf("error %v, want that the host is the reason", err)
	}
	return events.RetryAfter(err)
}

func TestBlockIsSharedAndLifted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	one, other := open(t, server), open(t, server)
	if err := ask(t, one, "acme/a", tooMany(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*hosts.Limiter{one, other} {
		j := l.Job("acme/b", false)
		if after := mustWait(t, j.Enter(t.Context(), robot)); after < time.Minute || after > 90*time.Second {
			t.Errorf("retry after %v", after)
		}
		if err := j.Enter(t.Context(), hosts.Target{Host: forge}); err != nil {
			t.Errorf("another credential: %v", err)
		}
		j.Leave(t.Context())
	}
	r := hosts.Reader{Redis: server.Client(), Prefix: prefix}
	all := testenv.Must(r.List(t.Context()))(t)
	if len(all) != 1 || all[0].Host != forge || len(all[0].Limited) != 1 || all[0].Limited[0].Credential != "robot" ||
		all[0].Waiting != 3 || all[0].Reason != hosts.RateLimit || time.Until(all[0].Until) < 59*time.Minute {
		t.Errorf("hosts %+v", all)
	}
	none := ""
	if lifted := testenv.Must(r.Clear(t.Context(), forge, &none))(t); len(lifted) != 0 {
		t.Errorf("lifted %+v", lifted)
	}
	if lifted := testenv.Must(r.Clear(t.Context(), forge, nil))(t); len(lifted) != 1 ||
		lifted[0].Credential != "robot" || !slices.Equal(lifted[0].Waiting, []string{"acme/a", "acme/b"}) {
		t.Errorf("lifted %+v", lifted)
	}
	j := other.Job("acme/b", false)
	defer j.Leave(t.Context())
	if err := j.Enter(t.Context(), robot); err != nil {
		t.Errorf("after the block was lifted: %v", err)
	}
}

// TestProcessThatWasKilledIsNoProbeForever leaves the only job that was let in after a block.
func TestProcessThatWasKilledIsNoProbeForever(t *testing.T) {
	t.Parallel()
	simulate(t, 2, nil, func(w *world) {
		first := w.processes[0].Job("acme/a", false)
		_ = request(w.Context(), first.With("robot"), forge, "", func(string) (time.Duration, wire.Answer) { return 0, tooMany(time.Second) })
		first.Leave(w.Context())
		time.Sleep(time.Second)
		killed := w.processes[0].Job("acme/a", false)
		if err := killed.Enter(w.Context(), robot); err != nil {
			t.Fatal(err)
		}
		if _, err := killed.With("robot").Acquire(w.Context(), forge); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.start(w.Context(), change{repo: "acme/b"}, forge, func(string) (time.Duration, wire.Answer) { return 0, good })
		w.jobs.Wait()
		if took := time.Since(began); took < 15*time.Second || took > 40*time.Second {
			t.Errorf("another repository goes on after %v, want about 20 s", took)
		}
	})
}

func TestRedisAway(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialTimeout: 50 * time.Millisecond})
	defer client.Close()
	l := testenv.Must(hosts.New(hosts.Config{Redis: client, Prefix: prefix}))(t)
	if err := ask(t, l, "acme/a", good); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, l, "acme/a", tooMany(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if after := mustWait(t, ask(t, l, "acme/b", good)); after < 50*time.Second {
		t.Errorf("retry after %v", after)
	}
}

// TestJobHasAQuarterOfTheHost has one job send many requests at once.
func TestJobHasAQuarterOfTheHost(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		j := w.processes[0].Job("acme/large", false)
		defer j.Leave(w.Context())
		answer := func(string) (time.Duration, wire.Answer) { return time.Second, good }
		_ = request(w.Context(), j.With("robot"), forge, "", answer)
		for range 64 {
			w.jobs.Go(func() { _ = request(w.Context(), j.With("robot"), forge, "", answer) })
		}
		time.Sleep(500 * time.Millisecond)
		if inFlight, waiting := w.processes[0].Load(); inFlight[forge] != 4 || waiting[forge] != 60 {
			t.Errorf("%d in flight, %d wait; want four in flight", inFlight[forge], waiting[forge])
		}
		began := time.Now()
		w.start(w.Context(), change{repo: "acme/small"}, forge, answer)
		for !w.has("acme/small") {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took > 2100*time.Millisecond {
			t.Errorf("another job took %v beside a large one", took)
		}
		w.jobs.Wait()
	})
}

func TestJobGivesUpAHostThatIsSilent(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		j := w.processes[0].Job("acme/a", false)
		defer j.Leave(w.Context())
		hang := func(string) (time.Duration, wire.Answer) { return time.Second, noAnswer }
		for range 3 {
			if err := request(w.Context(), j.With("robot"), forge, "", hang); !errors.Is(err, noAnswer.Err) {
				t.Fatal(err)
			}
		}
		err := request(w.Context(), j.With("robot"), forge, "", hang)
		testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
		other := w.processes[0].Job("acme/b", false)
		defer other.Leave(w.Context())
		if _, err := other.With("robot").Acquire(w.Context(), forge); err != nil {
			t.Errorf("one repository's failures concern another: %v", err)
		}
	})
}

func TestClosedLimiterLetsNobodyWait(t *testing.T) {
	t.Parallel()
	simulate(t, 1, func(cfg *hosts.Config) { cfg.Limit = 1 }, func(w *world) {
		l := w.processes[0]
		j := l.Job("acme/a", false)
		if _, err := j.With("robot").Acquire(w.Context(), forge); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- l.Job("acme/b", false).Enter(w.Context(), robot) }()
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(w.Context())
		go func() { ended <- l.Job("acme/c", false).Enter(ctx, robot) }()
		time.Sleep(time.Second)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		l.Close()
		testenv.MustFail(t, <-ended, events.ClassBusy, events.Contention)
		testenv.MustFail(t, j.Enter(w.Context(), robot), events.ClassBusy, events.Contention)
	})
}

func TestTargetsAreParsed(t *testing.T) {
	t.Parallel()
	for _, want := range []hosts.Target{robot, {Host: "git.example:8443"}, {Host: "a b", Credential: "x:y {z}"}} {
		if got, ok := hosts.ParseTarget(want.String()); !ok || got != want {
			t.Errorf("%+v: %+v, %v", want, got, ok)
		}
	}
	for _, bad := range []string{"", "a", ":b", "%zz:b"} {
		if got, ok := hosts.ParseTarget(bad); ok {
			t.Errorf("%q: %+v", bad, got)
		}
	}
	l := open(t, redistest.Start(t))
	j := l.Job("acme/a", false)
	defer j.Leave(t.Context())
	for _, a := range []wire.Answer{good, {Err: git.Errorf(git.Permanent, git.ClassConfig, "refused here")}} {
		host := forge
		if a.Err != nil {
			host = "other.example"
		}
		done := testenv.Must(j.With("robot").Acquire(t.Context(), host))(t)
		done(a)
	}
	if got := j.Targets(); !slices.Equal(got, []hosts.Target{robot}) {
		t.Errorf("targets %v, want those that answered", got)
	}
}

// TestRepositoryThatIsRefusedAloneLetsOthersTry has a host limit one repository for ever, which is first in line after a block.
func TestRepositoryThatIsRefusedAloneLetsOthersTry(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		refused := w.processes[0].Job("acme/refused", false)
		requests := 0
		for again := true; again && requests < 100; requests++ {
			done, err := refused.With("robot").Acquire(w.Context(), forge)
			if err != nil {
				t.Fatal(err)
			}
			again = done(tooMany(time.Second))
			if requests == 0 { // begin anew, as the job that is let in after the block
				refused.Leave(w.Context())
				time.Sleep(1100 * time.Millisecond) // Redis begins the block a little later than this process
				refused = w.processes[0].Job("acme/refused", false)
				again = true
			}
		}
		refused.Leave(w.Context())
		if requests < 3 || requests > 30 {
			t.Errorf("%d requests of one job", requests)
		}
		time.Sleep(2 * time.Second)
		other := w.processes[0].Job("acme/other", false)
		defer other.Leave(w.Context())
		if err := other.Enter(w.Context(), robot); err != nil {
			t.Errorf("another repository: %v", err)
		}
	})
}

// TestPlaceAtOneHostIsKeptWhileAnotherIsAwaited has a repository wait for two limited hosts.
func TestPlaceAtOneHostIsKeptWhileAnotherIsAwaited(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		l, second := w.processes[0], hosts.Target{Host: "lfs.example", Credential: "robot"}
		block := func(target hosts.Target, d time.Duration) {
			j := l.Job("acme/first", false)
			defer j.Leave(w.Context())
			done, err := j.With(target.Credential).Acquire(w.Context(), target.Host)
			if err != nil {
				t.Fatal(err)
			}
			done(tooMany(d))
		}
		block(robot, 10*time.Second)
		block(second, time.Hour)
		both := l.Job("acme/both", false)
		mustWait(t, both.Enter(w.Context(), robot))
		mustWait(t, both.Enter(w.Context(), second))
		both.Leave(w.Context())
		time.Sleep(10 * time.Second)
		both = l.Job("acme/both", false) // now it is its turn at one of them
		_ = both.Enter(w.Context(), robot)
		mustWait(t, both.Enter(w.Context(), second))
		both.Leave(w.Context())
		queue := testenv.Must(w.client.ZRange(w.Context(), prefix+"host:"+robot.String()+":queue", 0, -1).Result())(t)
		if !slices.Contains(queue, "acme/both") {
			t.Errorf("the queue is %v", queue)
		}
	})
}

func TestCancelledJobSaysNothingOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	one, other := open(t, server), open(t, server)
	if err := ask(t, one, "acme/a", tooMany(time.Hour)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j := other.Job("acme/b", false)
	defer j.Leave(t.Context())
	if err := j.Enter(ctx, robot); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	mustWait(t, j.Enter(t.Context(), robot)) // Redis is asked
}

// farRedis is a Redis whose round trips take a while, so that calls overlap.
type farRedis struct{ redis.Scripter }

func (r farRedis) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	time.Sleep(5 * time.Millisecond)
	return r.Scripter.EvalSha(ctx, sha, keys, args...)
}

// TestChangesLetInAreReportedOnce has many jobs ask Redis at the same time, each of which could report the changes that were let in since
// the last call. The rate, of which all waits follow, is a mean over 10 s.
func TestChangesLetInAreReportedOnce(t *testing.T) {
	t.Parallel()
	const jobs = 30
	var let atomic.Int64
	server := redistest.Start(t)
	l := testenv.Must(hosts.New(hosts.Config{Redis: farRedis{server.Client()}, Prefix: prefix, Limit: 4, Window: 16}))(t)
	var all sync.WaitGroup
	for n := range jobs {
		all.Go(func() {
			for i := range 10 {
				j := l.Job(fmt.Sprintf("acme/r-%d-%d", n, i), false)
				if j.Enter(t.Context(), robot) == nil {
					let.Add(1)
					time.Sleep(20 * time.Millisecond) // the remote's answer
				}
				j.Leave(t.Context())
			}
		})
	}
	all.Wait()
	text := testenv.Must(server.Client().HGet(t.Context(), prefix+"host:"+robot.String(), "rate").Result())(t)
	if rate := testenv.Must(strconv.ParseFloat(text, 64))(t); rate <= 0 || rate > float64(let.Load())/10 {
		t.Errorf("rate %v a second after %d changes within 10 s", rate, let.Load())
	}
}
