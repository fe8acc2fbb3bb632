package hosts_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
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

// refuse has a host refuse a request of a repository, which does not come back, and waits until others may.
func (w *world) refuse(repo string, a wire.Answer) {
	w.Helper()
	testenv.Must(0, ask(w.T, w.processes[0], repo, a))(w)
	time.Sleep(git.RetryAfter(a.Err) + 2*time.Second)
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
	testenv.Must(0, ask(t, one, "acme/a", tooMany(time.Hour)))(t)
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
		all[0].Waiting != 2 || all[0].Reason != hosts.RateLimit || time.Until(all[0].Until) < 59*time.Minute {
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
		testenv.Must(0, killed.Enter(w.Context(), robot))(t)
		testenv.Must(killed.With("robot").Acquire(w.Context(), forge))(t)
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
	testenv.Must(0, ask(t, l, "acme/a", good))(t)
	var flying []func(wire.Answer) bool
	for range 2 {
		flying = append(flying, testenv.Must(l.Job("acme/a", false).With("robot").Acquire(t.Context(), forge))(t))
	}
	flying[0](tooMany(time.Minute))
	flying[1](tooMany(time.Second)) // does not shorten the block
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
		testenv.Must(j.With("robot").Acquire(w.Context(), forge))(t)
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
}

// TestRepositoryThatIsRefusedAloneLetsOthersTry has a host limit one repository for ever, which is first in line after a block.
func TestRepositoryThatIsRefusedAloneLetsOthersTry(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		w.refuse("acme/refused", tooMany(time.Second))
		refused := w.processes[0].Job("acme/refused", false)
		requests := 0
		refuse := func(string) (time.Duration, wire.Answer) { requests++; return 0, tooMany(time.Second) }
		mustWait(t, request(w.Context(), refused.With("robot"), forge, "", refuse))
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

func TestCancelledJobSaysNothingOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	one, other := open(t, server), open(t, server)
	testenv.Must(0, ask(t, one, "acme/a", tooMany(time.Hour)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j := other.Job("acme/b", false)
	defer j.Leave(t.Context())
	if err := j.Enter(ctx, robot); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	mustWait(t, j.Enter(t.Context(), robot)) // Redis is asked
}

// TestJobSendsItsFirstRequestsTogether has a job with many files on a host that answers one request a second, right after a
// block.
func TestJobSendsItsFirstRequestsTogether(t *testing.T) {
	t.Parallel()
	simulate(t, 2, nil, func(w *world) {
		w.refuse("acme/other", tooMany(time.Second))
		began, host := time.Now(), &perSecond{}
		j := w.processes[1].Job("acme/files", false)
		defer j.Leave(w.Context())
		for n := range 12 {
			w.jobs.Go(func() {
				if err := request(w.Context(), j.With("robot"), forge, "", host.answer); err != nil {
					t.Errorf("request %d: %v", n, err)
				}
			})
		}
		w.jobs.Wait()
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("12 requests took %v", took)
		}
	})
}

// TestGoodAnswerDuringABlockDoesNotEndIt has a host answer one of two requests, and limit the other.
func TestGoodAnswerDuringABlockDoesNotEndIt(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	simulate(t, 1, func(cfg *hosts.Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) }, func(w *world) {
		w.refuse("acme/a", tooMany(time.Second))
		j := w.processes[0].Job("acme/a", false)
		defer j.Leave(w.Context())
		var flying []func(wire.Answer) bool
		for range 2 {
			flying = append(flying, testenv.Must(j.With("robot").Acquire(w.Context(), forge))(t))
		}
		flying[0](tooMany(time.Second))
		flying[1](good)
		logged := func(limited, ended int) {
			t.Helper()
			text := log.String()
			if n := strings.Count(text, "host limited"); n != limited {
				t.Errorf("%d lines of a block, want %d:\n%s", n, limited, text)
			}
			if n := strings.Count(text, "no longer limited"); n != ended {
				t.Errorf("%d lines of its end, want %d:\n%s", n, ended, text)
			}
		}
		logged(1, 0)
		for range 10 {
			answer := func(string) (time.Duration, wire.Answer) { return time.Millisecond, good }
			testenv.Must(0, request(w.Context(), j.With("robot"), forge, "", answer))(t)
		}
		logged(1, 1)
	})
}

// TestJobThatEndsTakesNoPlaceOfAnother has two jobs of a repository, the first of which has lost its turn.
func TestJobThatEndsTakesNoPlaceOfAnother(t *testing.T) {
	t.Parallel()
	simulate(t, 2, nil, func(w *world) {
		w.refuse("acme/x", tooMany(time.Second))
		enter := func(process int, repo string) (*hosts.Job, error) {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			j := w.processes[process].Job(repo, false)
			return j, j.Enter(ctx, robot)
		}
		first := testenv.Must(enter(0, "acme/a"))(t)
		time.Sleep(5 * time.Second) // it does not send a request
		between := testenv.Must(enter(0, "acme/b"))(t)
		defer between.Leave(w.Context())
		second, err := enter(1, "acme/a")
		if err == nil {
			t.Fatal("two repositories are let in after a block")
		}
		defer second.Leave(w.Context())
		first.Leave(w.Context())
		key := prefix + "host:" + robot.String() + ":queue"
		if place, err := w.client.ZScore(w.Context(), key, "acme/a").Result(); err != nil || place < 0 {
			t.Errorf("the place of the second job is %v, %v", place, err)
		}
	})
}

// TestAnswerThatUsesUpTheQuotaLeavesNoPlace has repositories get what they have asked for, and with it the news that the next one has to wait: they do not come
// back, so nobody waits behind them.
func TestAnswerThatUsesUpTheQuotaLeavesNoPlace(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		last := wire.Answer{Status: http.StatusOK, Header: http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"5"}}}
		testenv.Must(0, ask(t, w.processes[0], "acme/first", good))(t)
		var dones []func(wire.Answer) bool
		for n := range 10 {
			j := w.processes[0].Job(repoName(n), false)
			defer j.Leave(w.Context())
			dones = append(dones, testenv.Must(j.With("robot").Acquire(w.Context(), forge))(t))
		}
		for _, done := range dones {
			done(last)
		}
		mustWait(t, w.processes[0].Job("acme/next", false).Enter(w.Context(), robot))
		if n := w.waiting(); n != 1 {
			t.Errorf("%d repositories wait, want the one that was refused", n)
		}
	})
}

// TestProbeWhoseFirstAnswerUsesUpTheQuotaGoesOn has a host that allows one request every 5 s: the repository that is let in sends its second one when it may.
func TestProbeWhoseFirstAnswerUsesUpTheQuotaGoesOn(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		w.refuse("acme/x", tooMany(time.Second))
		j := w.processes[0].Job("acme/a", false)
		defer j.Leave(w.Context())
		soon, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		testenv.Must(0, j.Enter(soon, robot))(t)
		for range 2 {
			done := testenv.Must(j.With("robot").Acquire(soon, forge))(t)
			done(wire.Answer{Status: http.StatusOK, Header: http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"5"}}})
		}
	})
}

// TestFewPlacesKeepOne has a host of four places that leaves all unknown repositories without an answer: one place stays free for those that it answers.
func TestFewPlacesKeepOne(t *testing.T) {
	t.Parallel()
	simulate(t, 1, func(cfg *hosts.Config) { cfg.Limit = 4 }, func(w *world) {
		testenv.Must(0, ask(t, w.processes[0], "acme/known", good))(t)
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		for n := range 8 {
			w.start(ctx, change{repo: repoName(n)}, forge, func(string) (time.Duration, wire.Answer) { return time.Minute, noAnswer })
			time.Sleep(2 * time.Second)
		}
		soon, end := context.WithTimeout(w.Context(), time.Second)
		defer end()
		known := w.processes[0].Job("acme/known", false)
		defer known.Leave(w.Context())
		if _, err := known.With("robot").Acquire(soon, forge); err != nil {
			t.Errorf("a known repository waits: %v", err)
		}
		cancel()
		w.jobs.Wait()
	})
}

// TestClockOfRedisGoesBack sets Redis' clock back by an hour during a block, and while a repository has been let in.
func TestClockOfRedisGoesBack(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		l := w.processes[0]
		w.shift.Store(time.Hour.Milliseconds())
		testenv.Must(0, ask(t, l, "acme/a", tooMany(5*time.Second)))(t)
		w.shift.Store(0)
		began := time.Now()
		first := l.Job("acme/b", false)
		defer first.Leave(w.Context())
		for err := first.Enter(w.Context(), robot); err != nil; err = first.Enter(w.Context(), robot) {
			time.Sleep(events.RetryAfter(err))
		}
		if took := time.Since(began); took < 4*time.Second || took > 10*time.Second {
			t.Errorf("the block ends after %v, want about 5 s", took)
		}
		w.shift.Store(-time.Hour.Milliseconds())
		var let atomic.Int64
		for n := range 5 {
			w.jobs.Go(func() {
				ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
				defer cancel()
				j := l.Job(repoName(n), false)
				defer j.Leave(w.Context())
				if err := j.Enter(ctx, robot); err == nil {
					let.Add(1)
					time.Sleep(2 * time.Second)
				}
			})
		}
		w.jobs.Wait()
		if let.Load() != 1 {
			t.Errorf("%d other repositories are let in, want one", let.Load())
		}
	})
}

// TestBlockLastsASecondAtLeast has a host name a shorter time.
func TestBlockLastsASecondAtLeast(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		err := &git.Error{Retry: git.Contention, Class: git.ClassBusy, RetryAfter: 5 * time.Millisecond, Err: errors.New("limited")}
		began := time.Now()
		testenv.Must(0, ask(t, w.processes[0], "acme/a", wire.Answer{Status: 429, Err: err}))(t)
		j := w.processes[0].Job("acme/b", false)
		defer j.Leave(w.Context())
		if err := j.Enter(w.Context(), robot); err != nil || time.Since(began) < 900*time.Millisecond {
			t.Errorf("let in after %v: %v", time.Since(began), err)
		}
	})
}

// TestJobWithManyRequestsLeavesRoomForOthers has one job wait with many requests under its lease.
func TestJobWithManyRequestsLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	simulate(t, 1, func(cfg *hosts.Config) { cfg.Limit, cfg.Window = 1, 64 }, func(w *world) {
		l := w.processes[0]
		j := l.Job("acme/large", false)
		defer j.Leave(w.Context())
		answer := func(string) (time.Duration, wire.Answer) { return 100 * time.Millisecond, good }
		for range 100 {
			w.jobs.Go(func() { _ = request(w.Context(), j.With("robot"), forge, "", answer) })
		}
		time.Sleep(time.Second)
		if err := l.Job("acme/small", false).Enter(w.Context(), robot); err != nil {
			t.Errorf("another repository: %v", err)
		}
		w.jobs.Wait()
	})
}
