package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// knownFailure is something that Lockstep does wrong.
type knownFailure struct {
	name  string
	wrong string // one sentence

	// see reproduces it and returns what it saw, or "" if Lockstep did right. It fails the test if it cannot be set up.
	see func(t *testing.T) (saw string)
}

// knownFailures are the failures that nobody has mended yet. Whoever mends one takes it out of the table and makes its reproduction an
// ordinary test.
var knownFailures = []knownFailure{
	{name: "result ID after older data", see: resultIDRepeatsAfterOldData,
		wrong: "After Redis has returned with older data, a result has the ID of an earlier one, but another commit."},
	{name: "token API that hangs", see: hangingTokenAPIDelaysAnotherApp,
		wrong: "When the token of one app has expired, the request for the next one holds the lease of the repository, and another app waits."},
	{name: "ten billion files", see: craftedTreesTakeMemory,
		wrong: "Six repositories of less than a kilobyte, whose trees have ten billion files, take far more than a gigabyte of memory."},
	{name: "403 for some seconds", see: refusalHidesRepository,
		wrong: "One 403 hides a repository from the readers of its app until the next poll or push, long after the remote answers again."},
	{name: "403 and followers", see: refusalDeletesCopies,
		wrong: "One 403 makes followers delete their copies of the repository."},
	{name: "redelivery after a failure", see: failedDeliveryIsDuplicate,
		wrong: "A webhook whose change failed is a duplicate when the forge delivers it again, so nothing is tried again."},
	{name: "replica behind its webhook", see: announcedCommitIsMissing,
		wrong: "A change that is announced more than six seconds before the remote shows it settles as synced, with the old commit."},
	{name: "crash while waiting for a host", see: crashCostsAttempts,
		wrong: "A crash charges an attempt to each change that only waited for the answer of a host."},
	{name: "backoff after an outage", see: changeWaitsAfterOutage,
		wrong: "A change that failed when its host was down waits for its own backoff although the host answers again."},
}

// TestKnownFailures reproduces what is known to fail. A failure that is not seen any more fails the test.
func TestKnownFailures(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for _, f := range knownFailures {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			saw := f.see(t)
			if err := f.verdict(saw); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s Seen: %s", f.wrong, saw)
		})
	}
}

// verdict returns an error if the failure was not seen.
func (f knownFailure) verdict(saw string) error {
	if saw != "" {
		return nil
	}
	return errors.New("mended: take it out of the table and make it an ordinary test. It said: " + f.wrong)
}

func TestMendedFailureFailsTheRun(t *testing.T) {
	t.Parallel()
	f := knownFailure{wrong: "Nothing works."}
	if f.verdict("nothing works") != nil || f.verdict("") == nil {
		t.Error("a failure must be seen")
	}
}

// noneBeside reports whether a change has no result several seconds after a later one, of the same kind and certain to settle, has its own:
// the later one takes longer too when the machine is busy.
func (s *service) noneBeside(later, entry string) bool {
	s.Helper()
	s.awaitSynced(later)
	return s.noneWithin(5*time.Second, entry)
}

// noneWithin reports whether a change has no result for that long.
func (s *service) noneWithin(d time.Duration, entry string) bool {
	s.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, ok := s.resultOf(entry); ok {
			return false
		}
	}
	return true
}

// TestUnavailableRepositoryStopsNoOtherOfItsHost has a host answer 503 with Retry-After: 3600 for one repository.
func TestUnavailableRepositoryStopsNoOtherOfItsHost(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, good := startGood(t)
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(ofRepo("acme/bad", answers(http.StatusServiceUnavailable, time.Hour)))
	s := startService(t, credentialFor("ROBOT", "token", h.base))
	s.awaitSynced(s.publish(h.url("acme/before"), "credential", "robot"))
	s.publish(h.url("acme/bad"), "credential", "robot")
	proctest.Eventually(t, func() bool { return slices.Contains(h.repos(), "acme/bad") }, "the repository is refused")
	s.awaitSynced(s.publish(good))
	s.awaitSynced(s.publish(h.url("acme/other"), "credential", "robot"))
}

// startExpiring starts a service whose app's tokens expire at once. Both apps have synced the repository.
func startExpiring(t *testing.T, args ...string) *tokenAPI {
	t.Helper()
	s := startTokenAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":"one","expires_at":%q}`, time.Now().Add(time.Minute).UTC().Format(time.RFC3339))
	}, args...)
	s.awaitSynced(s.publishAs("one"))
	s.awaitSynced(s.publishAs("two"))
	return s
}

// TestFailingTokenAPIDelaysNoOtherApp has the token of one app expire, which cannot be renewed.
func TestFailingTokenAPIDelaysNoOtherApp(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	s := startExpiring(t, "--lease", "3s")
	before := len(s.api.seen())
	s.api.does(answers(http.StatusBadGateway, 0))
	s.publishAs("one")
	proctest.Eventually(t, func() bool { return len(s.api.seen()) >= before+5 }, "the API has failed five times")
	if saw := s.waitsForTheOther(); saw != "" {
		t.Error(saw)
	}
}

func hangingTokenAPIDelaysAnotherApp(t *testing.T) string {
	s := startExpiring(t)
	before := len(s.api.seen())
	s.api.does(hangs)
	s.publishAs("one")
	proctest.Eventually(t, func() bool { return len(s.api.seen()) > before }, "the API was asked")
	return s.waitsForTheOther()
}

// waitsForTheOther reports whether a change of app two, whose credential is in order, has no result for some seconds.
func (s *tokenAPI) waitsForTheOther() string {
	s.Helper()
	proctest.Must(s.git.Create(s.Context(), "acme/later", map[string]string{"a": "1"}))(s.T)
	entry := s.publishAs("two")
	if !s.noneBeside(s.publish(s.git.URL("acme/later"), "app", "two", "credential", "two"), entry) {
		return ""
	}
	return "the other app's change had no result within 5 s after a later one of another repository"
}

// craftedTreesTakeMemory syncs repositories whose trees nest ten levels deep, each with ten times the next one.
func craftedTreesTakeMemory(t *testing.T) string {
	const most = 512 << 20
	git := proctest.StartGit(t)
	var urls []string
	for n := range 6 {
		repo := fmt.Sprint("acme/crafted-", n)
		proctest.Must(0, git.CreateEmpty(t.Context(), repo))(t)
		object := proctest.Must(git.Git(t.Context(), repo, fmt.Sprint(n), "hash-object", "-w", "--stdin"))(t)
		for level, mode := 0, "100644 blob"; level < 10; level, mode = level+1, "040000 tree" {
			var entries strings.Builder
			for i := range 10 {
				fmt.Fprintf(&entries, "%s %s\t%d\n", mode, object, i)
			}
			object = proctest.Must(git.Git(t.Context(), repo, entries.String(), "mktree"))(t)
		}
		commit := proctest.Must(git.Git(t.Context(), repo, "", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit-tree", "-m", "x", object))(t)
		proctest.Must(0, git.SetRef(t.Context(), repo, "refs/heads/main", commit))(t)
		urls = append(urls, git.URL(repo))
	}
	s := startService(t, nil, "--slots", "6")
	for _, url := range urls {
		s.publish(url)
	}
	var peak int64
	proctest.Eventually(t, func() bool {
		peak = peakMemory(t, s.process.Cmd.Process.Pid)
		return peak > most || len(s.results()) == len(urls)
	}, "results of all repositories")
	if peak > most {
		s.process.Kill() // there may not be enough memory for all of them
		return fmt.Sprintf("more than %d MiB of memory in use before all are refused", most>>20)
	}
	for _, r := range s.results() {
		if r.Type != events.ResultFailed {
			t.Errorf("%s %s, want it refused", r.Type, r.Repo)
		}
	}
	return ""
}

// peakMemory returns the largest resident memory of a process so far, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status := string(proctest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t))
	_, after, _ := strings.Cut(status, "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatalf("%v in %s", err, status)
	}
	return kib << 10
}

// refused is a service with a reader, whose app has synced a repository. The remote has answered 403 for at most eight seconds, and answers
// well again.
type refused struct {
	*service
	token string // of the app docs
}

const refusedRepo = "acme/widgets"

// startRefused calls before ahead of the refusal.
func startRefused(t *testing.T, before func(*refused)) *refused {
	t.Helper()
	git := proctest.StartGit(t)
	proctest.Must(git.Create(t.Context(), refusedRepo, map[string]string{"a": "1"}))(t)
	h := startRemote(t, 2, inFrontOf(t, git))
	s := &refused{service: startService(t, nil, "--roles", "receiver,worker,notifier,scheduler,reader")}
	s.watch(map[string]any{"app": "docs", "url": h.url(refusedRepo)})
	s.awaitSynced(s.publish(h.url(refusedRepo), "app", "docs"))
	out, stderr, code := proctest.RunLockstep(t, nil, "tokens", "create", "--app", "docs", "--json", "--redis", s.redis.URL())
	if code != 0 {
		t.Fatalf("tokens create: exit code %d: %s", code, stderr)
	}
	s.token, _ = proctest.DecodeJSON(t, out)["token"].(string)
	if status := s.read(); status != http.StatusOK {
		t.Fatalf("the reader answers %d before the refusal", status)
	}
	before(s)
	asked := len(h.seen())
	h.does(answers(http.StatusForbidden, 0))
	s.noneWithin(8*time.Second, s.publish(h.url(refusedRepo), "app", "docs"))
	h.does(nil)
	if len(h.seen()) == asked {
		t.Fatal("the remote was not asked while it refuses")
	}
	return s
}

// read returns the status of a request by the app for the repository's files.
func (s *refused) read() int {
	s.Helper()
	status, _ := s.do("GET", "/api/v1/repos/"+refusedRepo+"/tree", "", "Authorization", "Bearer "+s.token)
	return status
}

func refusalHidesRepository(t *testing.T) string {
	s := startRefused(t, func(*refused) {})
	status := s.read()
	for deadline := time.Now().Add(8 * time.Second); status != http.StatusOK && time.Now().Before(deadline); status = s.read() {
		time.Sleep(100 * time.Millisecond)
	}
	if status == http.StatusOK {
		return ""
	}
	return fmt.Sprintf("8 s after the remote answers again, the reader answers %d", status)
}

func refusalDeletesCopies(t *testing.T) string {
	root := t.TempDir()
	copied := func() bool { _, err := os.Stat(root + "/" + refusedRepo + "/a"); return err == nil }
	startRefused(t, func(s *refused) {
		token := t.TempDir() + "/token"
		proctest.Must(0, os.WriteFile(token, []byte(s.token), 0o600))(t)
		proctest.Start(t, "follow", "http://"+s.address, "--root", root, "--token-file", token)
		proctest.Eventually(t, copied, "the follower has a copy")
	})
	for deadline := time.Now().Add(100 * time.Second); copied() && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
	if copied() {
		return ""
	}
	return "the follower has deleted its copy"
}

func failedDeliveryIsDuplicate(t *testing.T) string {
	git := proctest.StartGit(t)
	for _, repo := range []string{"acme/widgets", "acme/later"} {
		proctest.Must(git.Create(t.Context(), repo, map[string]string{"a": "1"}))(t)
	}
	h := startRemote(t, 2, inFrontOf(t, git))
	s := startService(t, hookEnv())
	s.watch(map[string]any{"app": "docs", "url": h.url("acme/widgets"), "poll": "never"})
	s.awaitSynced(s.publish(h.url("acme/widgets"), "app", "docs"))
	commit := proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	h.does(answers(http.StatusForbidden, 0))
	if answer := s.deliver("d1", h.url("acme/widgets"), commit); answer["duplicate"] == true {
		t.Fatalf("the first delivery: %v", answer)
	}
	proctest.Eventually(t, func() bool {
		return slices.ContainsFunc(s.results(), func(r events.Result) bool { return r.Type == events.ResultFailed && r.App == "docs" })
	}, "the change fails")
	h.does(nil)
	answer := s.deliver("d1", h.url("acme/widgets"), commit)
	s.awaitSynced(s.publish(h.url("acme/later")))
	synced := func() bool {
		return slices.ContainsFunc(s.results(), func(r events.Result) bool { return r.After == commit })
	}
	for deadline := time.Now().Add(5 * time.Second); !synced() && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
	if synced() {
		return ""
	}
	return fmt.Sprintf("the second delivery is answered with %v, and its commit is not synced within 5 s", answer)
}

func announcedCommitIsMissing(t *testing.T) string {
	git := proctest.StartGit(t)
	old := proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	proctest.Must(git.Create(t.Context(), "acme/later", map[string]string{"a": "1"}))(t)
	s := startService(t, nil)
	s.awaitSynced(s.publish(git.URL("acme/widgets")))
	commit := proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	proctest.Must(0, git.SetRef(t.Context(), "acme/widgets", "refs/heads/main", old))(t)
	entry := s.publish(git.URL("acme/widgets"), "ref", "main", "after", commit)
	s.awaitSynced(s.publish(git.URL("acme/later")))
	if s.noneWithin(12*time.Second, entry) {
		return ""
	}
	proctest.Must(0, git.SetRef(t.Context(), "acme/widgets", "refs/heads/main", commit))(t)
	if r := s.await(entry); r.Type == events.ResultSynced && r.After == old {
		return fmt.Sprintf("the change that announces %.12s ends as synced at %.12s", commit, r.After)
	}
	return ""
}

func crashCostsAttempts(t *testing.T) string {
	const repos = 20
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(hangs)
	s := startService(t, nil, "--lease", "1s")
	var entries []string
	for n := range repos {
		entries = append(entries, s.publish(h.url(fmt.Sprint("acme/r-", n))))
	}
	s.awaitTaken(repos)
	proctest.Eventually(t, func() bool { return len(h.seen()) > 0 }, "a request hangs")
	s.process.Kill()
	h.does(nil)
	s.start()
	s.awaitAllSynced(entries)
	charged := s.charged()
	if charged == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d changes have more than one attempt", charged, repos)
}

func changeWaitsAfterOutage(t *testing.T) string {
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(drops)
	s := startService(t, nil, "--lease", "10m", "--lock-wait", "10m")
	entry := s.publish(h.url("acme/first"))
	proctest.Eventually(t, func() bool {
		_, answer := s.do("GET", "/api/v1/repos/acme/first", "")
		return strings.Contains(answer, `"class":"network"`)
	}, "the attempt has failed")
	h.does(nil)
	s.awaitSynced(s.publish(h.url("acme/second"))) // so the service knows that the host answers
	if !s.noneBeside(s.publish(h.url("acme/third")), entry) {
		return ""
	}
	return "5 s after another repository of the host was synced, the change has no result"
}
