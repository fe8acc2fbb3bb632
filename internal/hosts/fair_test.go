package hosts_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/internal/git"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/testenv"
)

// TestHostOfOneRequestASecond has three processes sync many repositories of a host that answers one request a second.
func TestHostOfOneRequestASecond(t *testing.T) {
	t.Parallel()
	const minutes = 10
	repos := testenv.Form(1000, 10_000)
	simulate(t, 3, nil, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		h := &perSecond{}
		for n := range repos {
			w.start(ctx, change{repo: repoName(n)}, forge, h.answer)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(minutes * time.Minute)
		cancel()
		w.jobs.Wait()
		late := 0 // places behind the order of arrival
		for i, s := range w.log {
			var n int
			_, _ = fmt.Sscanf(s.repo, "acme/r-%d", &n)
			late = max(late, i-n, n-i)
		}
		takes := float64(w.takes.Load()) / float64(repos) / minutes
		t.Logf("%d answered, %d refused, %d settled, %.2f takes per repository and minute, %d out of order", h.answered, h.refused, len(w.log), takes, late)
		if perSecond := float64(h.answered) / minutes / 60; perSecond < 0.8 || perSecond > 1.1 {
			t.Errorf("%.2f answers a second", perSecond)
		}
		if takes > 2 {
			t.Errorf("%.2f takes per repository and minute, want at most 2", takes)
		}
		if late > 20 {
			t.Errorf("a repository was served %d places from its own", late)
		}
	})
}

// TestHostWithoutLimitIsNeverIdle syncs far more repositories than may wait in the processes.
func TestHostWithoutLimitIsNeverIdle(t *testing.T) {
	t.Parallel()
	repos := testenv.Form(1000, 6000)
	for _, processes := range []int{1, 2} {
		const latency, limit = 250 * time.Millisecond, 16
		simulate(t, processes, nil, func(w *world) {
			began := time.Now()
			for n := range repos {
				w.start(w.Context(), change{repo: repoName(n)}, forge, func(string) (time.Duration, wire.Answer) { return latency, good })
				time.Sleep(time.Millisecond)
			}
			w.jobs.Wait()
			took, least := time.Since(began), time.Duration(repos)*2*latency/time.Duration(limit*processes)
			late := 0
			for i, s := range w.log {
				var n int
				_, _ = fmt.Sscanf(s.repo, "acme/r-%d", &n)
				late = max(late, n-i)
			}
			t.Logf("%d processes: %v, at least %v are needed; %.1f takes per change, %d places too early", processes, took, least, float64(w.takes.Load())/float64(repos), late)
			if took > least*115/100+2*time.Second { // the first and the last requests have the host to themselves
				t.Errorf("%d processes: all are synced after %v, want at most 15 %% and 2 s more than %v", processes, took, least)
			}
		})
	}
}

// waiting returns how many repositories wait in Redis.
func (w *world) waiting() (n int) {
	all := testenv.Must(hosts.Reader{Redis: w.client, Prefix: prefix}.List(context.Background()))(w)
	for _, s := range all {
		n += s.Waiting
	}
	return n
}

// TestRepositoryHasOnePlace has twenty repositories wait beside one with many changes, in two processes. Each turn ends the place of
// a repository, so the others are served once before the one is served again but for what it has waited for before them.
func TestRepositoryHasOnePlace(t *testing.T) {
	t.Parallel()
	simulate(t, 2, nil, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		h := &perSecond{}
		for range 600 {
			w.start(ctx, change{repo: "acme/many"}, forge, h.answer)
		}
		time.Sleep(10 * time.Second)
		before := w.settled()
		for n := range 20 {
			w.start(ctx, change{repo: repoName(n)}, forge, h.answer)
		}
		time.Sleep(time.Second)
		if n := w.waiting(); n > 21 {
			t.Errorf("%d places of 21 repositories", n)
		}
		time.Sleep(3 * time.Minute)
		cancel()
		w.jobs.Wait()
		others, many, between := 0, 0, 0 // between: of the one, before the last of the others
		for _, s := range w.log[before:] {
			if s.repo == "acme/many" {
				many++
				continue
			}
			others, between = others+1, many
		}
		t.Logf("%d changes of the one repository between those of %d others", between, others)
		if others != 20 || between > 6 {
			t.Errorf("%d of 20 others are synced beside %d changes of a repository with many", others, between)
		}
	})
}

// TestPushesGoFirstAndPollsGetATenth has a slow host, with and without a limit of its own.
//
// At most 4 polls are served before a push. Slow: polls have one of the two places of each of the two processes, where each takes
// two requests of 2 s. The push takes 4 s, too, after at most 1.25 s if its place is left to known repositories, and within 5.25 s
// at most two polls end in each place. One request a second: first that poll ends which stays during blocks, then one that was let
// in before the push and has been sent away; twice that, because the push and a poll may be let in together.
func TestPushesGoFirstAndPollsGetATenth(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func() server{
		"one request a second": func() server { return (&perSecond{}).answer },
		"slow":                 func() server { return func(string) (time.Duration, wire.Answer) { return 2 * time.Second, good } },
	} {
		simulate(t, 2, func(cfg *hosts.Config) { cfg.Limit, cfg.Window = 2, 64 }, func(w *world) {
			ctx, cancel := context.WithCancel(w.Context())
			serve := answer()
			for n := range 200 {
				w.start(ctx, change{repo: "poll/" + repoName(n), poll: true}, forge, serve)
			}
			time.Sleep(time.Minute)
			before := w.settled()
			w.start(ctx, change{repo: "push/first"}, forge, serve)
			for range 100 {
				time.Sleep(time.Second)
				if w.has("push/first") {
					break
				}
			}
			w.mu.Lock()
			polls := slices.IndexFunc(w.log[before:], func(s settlement) bool { return s.repo == "push/first" })
			w.mu.Unlock()
			t.Logf("%s: %d polls before a push", name, polls)
			if polls < 0 || polls > 4 {
				t.Errorf("%s: %d polls were served before a push (-1: it was not)", name, polls)
			}
			for n := range 200 {
				w.start(ctx, change{repo: "push/" + repoName(n)}, forge, serve)
			}
			time.Sleep(10 * time.Second)
			from := w.settled()
			time.Sleep(3 * time.Minute)
			cancel()
			w.jobs.Wait()
			polls = 0
			for _, s := range w.log[from:] {
				if strings.HasPrefix(s.repo, "poll/") {
					polls++
				}
			}
			all := len(w.log) - from
			t.Logf("%s: %d of %d were polls", name, polls, all)
			if 10*polls < all-20 || 4*polls > all {
				t.Errorf("%s: %d of %d were polls, want a tenth", name, polls, all)
			}
		})
	}
}

func (w *world) has(repo string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.log, func(s settlement) bool { return s.repo == repo })
}

// TestOneProbeThenTwiceAsMany has a host limit everything for a while.
func TestOneProbeThenTwiceAsMany(t *testing.T) {
	t.Parallel()
	simulate(t, 3, nil, func(w *world) {
		began := time.Now()
		var mu sync.Mutex
		var asked []time.Duration
		var flying, most atomic.Int32
		serve := func(string) (time.Duration, wire.Answer) {
			mu.Lock()
			at := time.Since(began)
			asked = append(asked, at)
			mu.Unlock()
			if at < 5*time.Minute {
				return 50 * time.Millisecond, tooMany(time.Minute)
			}
			most.Store(max(most.Load(), flying.Add(1)))
			time.AfterFunc(time.Second, func() { flying.Add(-1) })
			return time.Second, good
		}
		for n := range 500 {
			w.start(w.Context(), change{repo: repoName(n)}, forge, serve)
		}
		time.Sleep(5 * time.Minute)
		mu.Lock()
		refused := len(asked)
		mu.Unlock()
		// Four in each process before anything is known, and one probe a minute over all of them.
		if refused > 3*4+5 {
			t.Errorf("%d requests in five minutes of blocks, want at most 17", refused)
		}
		if takes := float64(w.takes.Load()) / 500 / 5; takes > 1.3 {
			t.Errorf("%.2f takes per repository and minute of a block, want about one", takes)
		}
		time.Sleep(80 * time.Second)
		w.jobs.Wait()
		var first []string
		for _, at := range asked[refused:min(len(asked), refused+8)] {
			first = append(first, at.Round(time.Second).String())
		}
		t.Logf("requests after the block: %v; all synced after %v; most in flight %d", first, time.Since(began), most.Load())
		if len(asked) > refused+1 && asked[refused+1]-asked[refused] < 900*time.Millisecond {
			t.Errorf("more than one probe: %v", first)
		}
		if most.Load() < 16 {
			t.Errorf("at most %d requests in flight of three processes after the block", most.Load())
		}
	})
}

// TestRepositoryIsNotBlamedOnItsHost has some repositories of a host fail, each in its way.
func TestRepositoryIsNotBlamedOnItsHost(t *testing.T) {
	t.Parallel()
	dropped := noAnswer
	refused := noAnswer
	refused.Unreachable = true
	for name, tc := range map[string]struct {
		a        wire.Answer
		repos    int
		isHost   bool
		goodOnes bool // others are answered meanwhile
	}{
		"503 of one repository":     {refusal(503, time.Hour), 1, false, false},
		"503 of several":            {refusal(503, time.Hour), 3, true, false},
		"504 of two":                {wire.Answer{Status: 504}, 2, false, false},
		"504 of three":              {wire.Answer{Status: 504}, 3, true, false},
		"504 of three among others": {wire.Answer{Status: 504}, 3, false, true},
		"dropped by one":            {dropped, 1, false, false},
		"dropped by three":          {dropped, 3, true, false},
		"no connection":             {refused, 1, true, false},
		"no connection once":        {refused, 1, false, true},
		"401 of many":               {wire.Answer{Status: 401, Err: git.Errorf(git.Permanent, git.ClassAuth, "no")}, 9, false, false},
		"429 of one":                {tooMany(0), 1, true, false},
	} {
		simulate(t, 1, nil, func(w *world) {
			ctx := w.Context()
			for n := range tc.repos {
				j := w.processes[0].Job(repoName(n), false)
				_ = request(ctx, j.With("robot"), forge, "", func(string) (time.Duration, wire.Answer) {
					if tc.goodOnes {
						j := w.processes[0].Job("acme/good", false)
						_ = request(ctx, j.With("robot"), forge, "", func(string) (time.Duration, wire.Answer) { return 10 * time.Millisecond, good })
						j.Leave(ctx)
					}
					return time.Second, tc.a
				})
				j.Leave(ctx)
			}
			j := w.processes[0].Job("acme/another", false)
			defer j.Leave(ctx)
			_, err := j.With("robot").Acquire(ctx, forge)
			if blocked := err != nil; blocked != tc.isHost {
				t.Errorf("%s: another repository: %v", name, err)
			}
		})
	}
}

// TestRepositoriesThatHangDelayNoOtherOfTheirHost has a host that does not answer some repositories.
func TestRepositoriesThatHangDelayNoOtherOfTheirHost(t *testing.T) {
	t.Parallel()
	simulate(t, 1, nil, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		answer := func(repo string) (time.Duration, wire.Answer) {
			if repo == "acme/good" {
				return 50 * time.Millisecond, good
			}
			return time.Minute, noAnswer
		}
		sync := func() {
			w.log = nil
			w.start(ctx, change{repo: "acme/good"}, forge, answer)
			for !w.has("acme/good") {
				time.Sleep(50 * time.Millisecond)
			}
		}
		sync()
		for n := range 80 {
			w.start(ctx, change{repo: repoName(n)}, forge, answer)
		}
		time.Sleep(2 * time.Second) // the first ones hang
		for n := range 30 {
			time.Sleep(5 * time.Second)
			began := time.Now()
			if sync(); time.Since(began) > 2*time.Second {
				t.Errorf("a change of a good repository took %v after %d s", time.Since(began), 5*n)
			}
		}
		cancel()
		w.jobs.Wait()
	})
}
