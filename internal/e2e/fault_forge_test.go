package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// forgeFault is a way in which a forge, or what stands before it, fails for a moment.
type forgeFault struct {
	name  string
	means meaning
	after time.Duration // when it asks to be tried again; 0 if it does not say
	does  func(remoteRequest, http.ResponseWriter, *http.Request) bool
}

// meaning is what a fault concerns, and so when the next attempt is due.
type meaning string

const (
	failure meaning = "failure" // of the repository
	refusal meaning = "refusal" // of a credential at the repository
	limited meaning = "limited" // of a credential at the host, or of the host
	slow    meaning = "slow"    // no failure: the answer is good
)

// forgeFaults returns all of them. A further one is a line.
func forgeFaults(h *remoteHost) []forgeFault {
	status := func(code int, means meaning, after time.Duration) forgeFault {
		return forgeFault{fmt.Sprint(code, " after ", after), means, after, answers(code, after)}
	}
	return []forgeFault{
		status(http.StatusInternalServerError, failure, 0),
		status(http.StatusBadGateway, failure, 0),
		status(http.StatusServiceUnavailable, failure, 0),
		status(http.StatusServiceUnavailable, failure, 2*time.Second),
		status(http.StatusServiceUnavailable, failure, 5*time.Second),
		status(http.StatusGatewayTimeout, failure, 0),
		status(http.StatusRequestTimeout, failure, 0),
		status(http.StatusLocked, failure, 0),
		status(http.StatusProxyAuthRequired, failure, 0),
		{"a page of maintenance", failure, 0, says(http.StatusOK, "text/html", "<h1>Back soon</h1>")},
		{"an error of the server in words", failure, 0, saysERR("Internal error: try again")},
		{"a connection that breaks", failure, 0, drops},
		{"a connection that breaks amid the answer", failure, 0, breaksAmid(h)},
		{"an answer after 3 s", slow, 3 * time.Second, stalls},
		status(http.StatusTooManyRequests, limited, 0),
		status(http.StatusTooManyRequests, limited, time.Second),
		status(http.StatusTooManyRequests, limited, 5*time.Second),
		status(http.StatusForbidden, limited, 2*time.Second),
		{"a rate limit in words", limited, 0, says(http.StatusForbidden, "application/json", `{"message":"You have exceeded a secondary rate limit"}`)},
		{"a firewall", limited, 0, says(http.StatusForbidden, "text/html", "<title>Too Many Requests</title>")},
		{"a rate limit as an error of Git", limited, 0, saysERR("rate limit exceeded")},
		status(http.StatusUnauthorized, refusal, 0),
		status(http.StatusPaymentRequired, refusal, 0),
		status(http.StatusForbidden, refusal, 0),
		status(http.StatusNotFound, refusal, 0),
		status(http.StatusUnavailableForLegalReasons, refusal, 0),
		{"a login page by a redirect", refusal, 0, redirectsToLogin},
		{"a login page with 203", refusal, 0, says(http.StatusNonAuthoritativeInfo, "text/html", "<html>Sign In")},
		{"a login page in place", refusal, 0, says(http.StatusOK, "text/html", `<input type="password">`)},
		{"SAML in words", refusal, 0, saysERR("The 'acme' organization has enabled or enforced SAML SSO.")},
		{"an IP allow list in words", refusal, 0, saysERR("the organization has an IP allow list enabled")},
		{"a suspended account", refusal, 0, saysERR("Your account is suspended.")},
		{"a repository not found in words", refusal, 0, saysERR("Repository not found.")},
	}
}

// delay returns the longest documented time until the next attempt after the nth fault of that meaning in a row.
func (f forgeFault) delay(n int) time.Duration {
	switch f.means {
	case refusal:
		return []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}[min(n, 3)-1]
	case failure:
		if n < 5 {
			return max(f.after, time.Second<<(n-1))
		}
		return min(30*time.Second<<min(n-5, 5), 10*time.Minute)
	case limited:
		return cmp.Or(f.after, min(time.Second<<min(n-1, 9), 5*time.Minute))
	}
	return f.after
}

// says answers with a page.
func says(status int, kind, text string) func(remoteRequest, http.ResponseWriter, *http.Request) bool {
	return func(_ remoteRequest, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
		return true
	}
}

// saysERR answers with an error of Git's protocol.
func saysERR(text string) func(remoteRequest, http.ResponseWriter, *http.Request) bool {
	return func(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		kind, line := "result", fmt.Sprintf("%04xERR %s", len(text)+8, text)
		if r.Method == http.MethodGet {
			kind, line = "advertisement", "001e# service=git-upload-pack\n0000"+line
		}
		return says(http.StatusOK, "application/x-git-upload-pack-"+kind, line)(request, w, r)
	}
}

func redirectsToLogin(_ remoteRequest, w http.ResponseWriter, r *http.Request) bool {
	http.Redirect(w, r, "/"+loginPage, http.StatusFound)
	return true
}

const loginPage = "users/sign_in"

// breaksAmid sends half of the answer.
func breaksAmid(h *remoteHost) func(remoteRequest, http.ResponseWriter, *http.Request) bool {
	return func(_ remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		answer := httptest.NewRecorder()
		h.next.ServeHTTP(answer, r)
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// stalls answers late, but well.
func stalls(_ remoteRequest, _ http.ResponseWriter, r *http.Request) bool {
	pause(r.Context(), 3*time.Second)
	return false
}

// forgeAnswer is a request to the forge and what came of it.
type forgeAnswer struct {
	remoteRequest
	fault *forgeFault // nil if the answer was good
}

// forgePush is a push whose webhook was accepted.
type forgePush struct {
	repo, ref, commit string
	at                time.Time
}

// faultyForge is a service with a second worker, a reader and followers of three apps, and a forge that fails now and then.
type faultyForge struct {
	*service
	git    *gitserver.Server
	remote *remoteHost
	issuer *remoteHost // of the tokens of the bot, which never fails
	repos  []string
	tokens map[string]string // by app, of the reader
	copies map[string]string // by app, of its follower

	mu      sync.Mutex
	random  *rand.Rand
	faults  []forgeFault
	refused map[string]bool // repository and token
	every   int             // one request in so many fails; 0 for none
	answers []forgeAnswer

	pushes  []forgePush // used only by the goroutine that pushes
	samples []sample    // used only by the goroutine that samples
}

// sample is what lockstep status shows of failures at a moment.
type sample struct {
	at      time.Time
	limited bool            // the host, for a credential
	failing map[string]bool // by repository
	status  string          // all that was shown
}

// forgeApps are the apps, each with its credential and the branches that it watches.
var forgeApps = map[string]struct {
	secret string
	refs   []string
}{
	"docs": {"one-secret", []string{"main"}}, "search": {"two-secret", []string{"main", "next"}},
	botApp: {"three-secret", []string{"main"}}, // issued by the forge
}

const botApp = "bot" // whose credential is a GitHub App

func startFaultyForge(t *testing.T) *faultyForge {
	t.Helper()
	f := &faultyForge{git: proctest.StartGit(t), tokens: map[string]string{}, copies: map[string]string{}, random: rand.New(rand.NewPCG(testenv.Seed(t), 0))}
	f.remote = startRemote(t, 2, inFrontOf(t, f.git))
	f.faults, f.refused = forgeFaults(f.remote), map[string]bool{}
	f.remote.does(f.answer)
	f.issuer = startRemote(t, 3, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":%q,"expires_at":%q}`, forgeApps[botApp].secret, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	env := append(appCredentialFor(t, "BOT", f.issuer, f.remote.base), "LOCKSTEP_RESULTS_KEEP=6h") // all results are read at the end
	for app, a := range forgeApps {
		if app != botApp {
			env = append(env, credentialFor(strings.ToUpper(app), a.secret, f.remote.base)...)
		}
	}
	f.service = startService(t, append(env, hookEnv()...), "--roles", "receiver,worker,notifier,scheduler,reader")
	second := proctest.Command(t, "serve", "--roles", "worker", "--redis", f.redis.URL(), "--root", f.root)
	second.Env = append(os.Environ(), env...)
	proctest.StartCommand(t, second)
	var entries []string
	for n := range 6 {
		repo := fmt.Sprint("acme/repo-", n)
		commit := proctest.Must(f.git.Create(t.Context(), repo, map[string]string{"n": "0"}))(t)
		proctest.Must(0, f.git.SetRef(t.Context(), repo, "refs/heads/next", commit))(t)
		f.git.AcceptTokens(repo, forgeApps["docs"].secret, forgeApps["search"].secret, forgeApps[botApp].secret)
		f.repos = append(f.repos, repo)
		for app, a := range forgeApps {
			for _, ref := range a.refs {
				f.watch(map[string]any{"app": app, "url": f.remote.url(repo), "ref": ref, "credential": app, "poll": "10s"})
				entries = append(entries, f.publish(f.remote.url(repo), "app", app, "credential", app, "ref", "refs/heads/"+ref))
			}
		}
	}
	for _, entry := range entries {
		f.awaitSynced(entry)
	}
	for app := range forgeApps {
		f.follow(app)
	}
	return f
}

// follow creates a token for an app and starts a follower, which has a copy of everything when follow returns.
func (f *faultyForge) follow(app string) {
	f.Helper()
	out, stderr, code := proctest.RunLockstep(f.T, nil, "tokens", "create", "--app", app, "--json", "--redis", f.redis.URL())
	if code != 0 {
		f.Fatalf("tokens create: exit code %d: %s", code, stderr)
	}
	f.tokens[app], _ = proctest.DecodeJSON(f.T, out)["token"].(string)
	file := filepath.Join(f.TempDir(), "token")
	proctest.Must(0, os.WriteFile(file, []byte(f.tokens[app]), 0o600))(f.T)
	f.copies[app] = f.TempDir()
	proctest.Start(f.T, "follow", "http://"+f.address, "--root", f.copies[app], "--token-file", file)
	proctest.Eventually(f.T, func() bool {
		return f.each(func(name, repo, ref string) bool { return name != app || f.copied(name, repo, ref) != "" })
	}, "the follower of %s has all copies", app)
}

// each calls fn for each branch of each repository of each app, and returns whether all calls did.
func (f *faultyForge) each(fn func(app, repo, ref string) bool) bool {
	all := true
	for _, app := range slices.Sorted(maps.Keys(forgeApps)) {
		for _, repo := range f.repos {
			for _, ref := range forgeApps[app].refs {
				all = fn(app, repo, ref) && all
			}
		}
	}
	return all
}

// copied returns the content of the file n in a follower's copy, or "".
func (f *faultyForge) copied(app, repo, ref string) string {
	name := repo
	if ref != gitserver.Main {
		name += "@" + ref
	}
	content, _ := os.ReadFile(filepath.Join(f.copies[app], name, "n"))
	return string(content)
}

// answer is the behaviour of the forge.
func (f *faultyForge) answer(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
	if request.repo == loginPage {
		return says(http.StatusOK, "text/html", "<form>")(request, w, r)
	}
	a := forgeAnswer{remoteRequest: request}
	f.mu.Lock()
	if f.every > 0 && f.random.IntN(f.every) == 0 {
		a.fault = &f.faults[f.random.IntN(len(f.faults))]
		if a.fault.means == refusal && !testenv.Soaking() { // the attempt after the second one in a row is a minute later
			if f.refused[request.repo+request.token] {
				a.fault = nil
			}
			f.refused[request.repo+request.token] = true
		}
	}
	f.answers = append(f.answers, a)
	f.mu.Unlock()
	return a.fault != nil && a.fault.does(request, w, r)
}

// fail makes one request in so many fail, or none if it is 0.
func (f *faultyForge) fail(every int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.every = every
}

// push pushes to all repositories in turn until ctx is done.
func (f *faultyForge) push(ctx context.Context, every time.Duration) error {
	for n := 1; ctx.Err() == nil; n++ {
		repo, ref := f.repos[n%len(f.repos)], gitserver.Main
		if n%4 == 0 {
			ref = "next"
		}
		if err := f.pushOne(repo, ref, n); err != nil {
			return err
		}
		pause(ctx, every)
	}
	return nil
}

func (f *faultyForge) pushOne(repo, ref string, n int) error {
	commit, err := f.git.Commit(context.Background(), repo, ref, gitserver.Edit{
		Write: map[string]string{"n": strconv.Itoa(n)}, Parent: f.git.Head(repo, "refs/heads/"+ref),
	})
	if err != nil {
		return err
	}
	f.deliverPush(fmt.Sprint("push-", n), f.remote.url(repo), ref, "", commit)
	f.pushes = append(f.pushes, forgePush{repo, "refs/heads/" + ref, commit, time.Now()})
	return nil
}

// read reads all branches of all apps from the reader and from the followers' copies, again and again until ctx is done. It returns how often, and
// every read that failed or returned older content than before.
func (f *faultyForge) read(ctx context.Context) (reads int, lost []string) {
	last := map[string]int{}
	newer := func(where, content string) {
		reads++
		n, err := strconv.Atoi(content)
		if err != nil || n < last[where] {
			lost = append(lost, fmt.Sprintf("%v %s: %.100q after %d", time.Now().Format(time.TimeOnly), where, content, last[where]))
			return
		}
		last[where] = n
	}
	for ctx.Err() == nil {
		f.each(func(app, repo, ref string) bool {
			status, answer := f.do("GET", "/api/v1/repos/"+repo+"/files/n?ref="+ref, "", "Authorization", "Bearer "+f.tokens[app])
			if status != http.StatusOK {
				answer = fmt.Sprint("status ", status, " ", answer)
			}
			newer(fmt.Sprint("reader ", app, " ", repo, " ", ref), answer)
			newer(fmt.Sprint("follower ", app, " ", repo, " ", ref), f.copied(app, repo, ref))
			pause(ctx, 10*time.Millisecond)
			return true
		})
	}
	return reads, lost
}

// sample records what lockstep status shows, until ctx is done.
func (f *faultyForge) sample(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, 500*time.Millisecond) {
		f.samples = append(f.samples, f.shown())
	}
}

// shown returns what lockstep status shows.
func (f *faultyForge) shown() sample {
	f.Helper()
	s := sample{at: time.Now(), failing: map[string]bool{}}
	out, stderr, code := proctest.RunLockstep(f.T, nil, "status", "--redis", f.redis.URL(), "-o", "json")
	if code != 0 {
		f.Errorf("status: exit code %d: %s", code, stderr)
		return s
	}
	var status struct {
		Repositories struct{ Worst []struct{ Repo string } }
		Hosts        []any
	}
	proctest.Must(0, json.Unmarshal([]byte(out), &status))(f.T)
	for _, one := range status.Repositories.Worst {
		s.failing[one.Repo] = true
	}
	s.limited, s.status = len(status.Hosts) > 0, out
	return s
}

// received returns when each app was given a commit, by branch, in the order of the results.
func (f *faultyForge) received() map[chain][]receipt {
	f.Helper()
	all := map[chain][]receipt{}
	for _, entry := range proctest.Must(f.client.XRange(context.Background(), "lockstep:{0}:results", "-", "+").Result())(f.T) {
		switch r := proctest.DecodeResult(f.T, entry); r.Type {
		case events.ResultSynced:
			c := chain{r.Repo.String(), r.Ref.String(), r.App}
			all[c] = append(all[c], receipt{r.After, events.EntryTime(entry.ID)})
		case events.ResultFailed:
			f.Errorf("%s %s %s %s: %s", r.Repo, r.Ref, r.App, r.Class, r.Error)
		}
	}
	return all
}

// receipt is a commit that an app was given, and when.
type receipt struct {
	commit string
	at     time.Time
}

// wait is how long an app waited for a push.
type wait struct {
	forgePush
	app      string
	given    time.Time
	due      time.Time // of the last attempt that was necessary
	receipts []receipt // of the app, of the branch
}

// waits returns how long each app waited for each push to a branch that it watches.
func (f *faultyForge) waits() (all []wait) {
	f.Helper()
	received, branches := f.received(), map[[2]string][]forgePush{}
	for _, p := range f.pushes {
		branches[[2]string{p.repo, p.ref}] = append(branches[[2]string{p.repo, p.ref}], p)
	}
	for app, a := range forgeApps {
		for branch, pushes := range branches {
			if !slices.Contains(a.refs, strings.TrimPrefix(branch[1], "refs/heads/")) {
				continue
			}
			receipts := received[chain{branch[0], branch[1], app}]
			n := 0
			for _, r := range receipts {
				to := slices.IndexFunc(pushes, func(p forgePush) bool { return p.commit == r.commit })
				for ; n <= to; n++ {
					all = append(all, wait{pushes[n], app, r.at, f.due(pushes[n], app, r.at, receipts), receipts})
				}
			}
			if n < len(pushes) {
				f.Errorf("%s was not given %.12s, the head of %s of %s", app, pushes[len(pushes)-1].commit, branch[1], branch[0])
			}
		}
	}
	return all
}

// due returns until when the last attempt at a push before a time was due at the latest: with the push, or after the faults until then, as
// docs/failure-modes.md, docs/guarantees.md and docs/operations.md say.
func (f *faultyForge) due(p forgePush, app string, until time.Time, receipts []receipt) (due time.Time) {
	due, row := p.at, map[meaning]int{}
	from, _ := slices.BinarySearchFunc(f.answers, p.at.Add(-6*time.Minute), func(a forgeAnswer, at time.Time) int { return a.at.Compare(at) })
	next, _ := slices.BinarySearchFunc(receipts, p.at.Add(-6*time.Minute), func(r receipt, at time.Time) int { return r.at.Compare(at) })
	for _, a := range f.answers[from:] {
		if a.at.After(until) {
			break
		}
		for ; next < len(receipts) && receipts[next].at.Before(a.at); next++ {
			clear(row)
		}
		ofRepo := a.repo == p.repo
		switch {
		case a.fault == nil, a.fault.means != limited && !ofRepo, a.fault.means == refusal && a.token != forgeApps[app].secret:
			continue
		}
		row[a.fault.means]++
		if next := a.at.Add(a.fault.delay(row[a.fault.means])); next.After(due) {
			due = next
		}
	}
	return due
}

// TestForgeThatFailsNowAndThen has a forge fail 5 % of its requests at random, in all ways, while pushes go on. Nobody loses access, every push is given
// to its apps within seconds of the next attempt that is due, and failures are shown while they last and no longer.
func TestForgeThatFailsNowAndThen(t *testing.T) {
	testenv.Long(t)
	const one, soon = 20, 5 * time.Second // one request in so many fails
	f := startFaultyForge(t)
	began := time.Now()
	f.fail(one)
	pushing, stop := context.WithTimeout(t.Context(), testenv.SoakTime(t, 20*time.Second, time.Hour))
	defer stop()
	looking, enough := context.WithCancel(t.Context())
	defer enough()
	var looks errgroup.Group
	var reads int
	var lost []string
	looks.Go(func() error { reads, lost = f.read(looking); return nil })
	looks.Go(func() error { f.sample(looking); return nil })
	proctest.Must(0, f.push(pushing, 100*time.Millisecond))(t)
	f.fail(0)
	ended := time.Now()
	f.awaitWell()
	enough()
	_ = looks.Wait()
	took := time.Since(ended).Round(time.Millisecond)
	if len(lost) > 0 {
		t.Errorf("%d of %d reads failed: %q", len(lost), reads, lost[:min(10, len(lost))])
	}
	counts := map[string]int{}
	for _, a := range f.answers {
		if a.fault != nil {
			counts[a.fault.name]++
		}
	}
	t.Logf("%d pushes, %d requests, %d reads; all is well %v after the last fault; faults: %v", len(f.pushes), len(f.answers), reads, took, counts)
	if issued, most := len(f.issuer.seen()), 2*(2+int(time.Since(began)/time.Minute)); issued > most {
		t.Errorf("%d tokens were issued, want at most %d: one a minute for each worker", issued, most)
	}
	f.assertSoon(soon)
	f.assertShown()
}

// assertSoon checks that apps are given pushes within a time after the attempt that is due.
func (f *faultyForge) assertSoon(soon time.Duration) {
	f.Helper()
	all := f.waits()
	slices.SortFunc(all, func(a, b wait) int { return cmp.Compare(b.given.Sub(b.due), a.given.Sub(a.due)) })
	for _, n := range []int{0, len(all) / 1000, len(all) / 100, len(all) / 20, len(all) / 2} {
		f.Logf("%d of %d waits are longer than %v after the attempt that is due", n, len(all), all[n].given.Sub(all[n].due).Round(time.Millisecond))
	}
	for _, w := range all[:min(10, len(all))] {
		if late := w.given.Sub(w.due); late > soon+margin() {
			f.Errorf("%s was given the push of %v to %s of %s %v after the attempt that was due at %v", w.app, w.at, w.ref, w.repo, late, w.due)
		}
	}
}

func clock(at time.Time) string { return at.UTC().Format("15:04:05.000") }

// faultsUntil describes the faults that a push has met.
func (f *faultyForge) faultsUntil(w wait) (text string) {
	for _, a := range f.answers {
		if a.fault != nil && a.at.After(w.at.Add(-10*time.Second)) && a.at.Before(w.given) && (a.repo == w.repo || a.fault.means == limited) {
			text += fmt.Sprintf("%s %s %s %s; ", clock(a.at), a.repo, a.token, a.fault.name)
		}
	}
	return text
}

// stalls reports whether the forge is late with an answer for a repository, or was within the last two seconds.
func (f *faultyForge) stalls(repo string, at time.Time) bool {
	return slices.ContainsFunc(f.answers, func(a forgeAnswer) bool {
		return a.repo == repo && a.fault != nil && a.fault.means == slow && at.After(a.at) && at.Before(a.at.Add(a.fault.after+2*time.Second))
	})
}

// assertShown checks that lockstep status shows a failure of the repository, or a limit of the host, while an app that is given a push late waits for the next
// attempt at it.
func (f *faultyForge) assertShown() {
	f.Helper()
	slack := testenv.Soak(3*time.Second, time.Second) // for a busy machine
	var hidden []string                               // one sample of each push
	shown, all := 0, 0
	for _, w := range f.waits() {
		one := ""

		if w.given.Sub(w.at) < 2*slack {
			continue
		}
		for _, s := range f.samples {
			switch {
			case s.at.Before(w.at.Add(slack)), s.at.After(w.given.Add(-slack)):
			case s.limited, s.failing[w.repo]:
				shown++
			case f.stalls(w.repo, s.at): // that is no failure
			case s.at.After(f.due(w.forgePush, w.app, s.at, w.receipts)): // nor is a turn that is near
			default:
				all++
				one = fmt.Sprintf("%s: the push of %s to %s of %s for %s, given at %s, after %s: %s", clock(s.at), clock(w.at), w.ref, w.repo, w.app,
					clock(w.given), f.faultsUntil(w), s.status)
			}
		}
		if one != "" {
			hidden = append(hidden, one)
		}
	}
	f.Logf("%d samples show why a push is late", shown)
	if !slices.ContainsFunc(f.samples, func(s sample) bool { return s.limited || len(s.failing) > 0 }) {
		f.Error("no sample shows a failure, so the test proves nothing")
	}
	if len(hidden) > 0 {
		f.Errorf("%d samples of %d pushes show no failure: %s", all, len(hidden), strings.Join(hidden[:min(10, len(hidden))], "\n"))
	}
}

// awaitWell waits until every app has the head of every branch, nothing is shown as failing, and nothing is left.
func (f *faultyForge) awaitWell() {
	f.Helper()
	behind := ""
	proctest.Eventually(f.T, func() bool {
		behind = ""
		return f.each(func(app, repo, ref string) bool {
			content := proctest.Must(f.git.Git(f.Context(), repo, "", "show", "refs/heads/"+ref+":n"))(f.T)
			if got := f.copied(app, repo, ref); got != content {
				behind = fmt.Sprint(app, " ", repo, " ", ref, " has ", got, " not ", content)
				return false
			}
			return true
		})
	}, "every follower has the head of every branch; %s", &behind)
	proctest.Eventually(f.T, func() bool {
		s := f.shown()
		return !s.limited && len(s.failing) == 0
	}, "nothing is shown as failing")
	if testenv.Soaking() { // a poll that has waited for the host comes back within 90 s
		proctest.Eventually(f.T, func() bool { return isSettled(f.client) }, "everything is settled")
	}
	if letters := f.deadLetters(); len(letters) > 0 {
		f.Errorf("dead letters: %v", letters)
	}
}
