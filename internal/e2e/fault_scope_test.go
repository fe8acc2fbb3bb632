package e2e

import (
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

// TestHangingTokenAPIDelaysNoOtherApp has the token of one app expire, and the request for the next one hang.
func TestHangingTokenAPIDelaysNoOtherApp(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	s := startExpiring(t)
	before := len(s.api.seen())
	s.api.does(hangs)
	entry := s.publishAs("one")
	proctest.Eventually(t, func() bool { return len(s.api.seen()) > before }, "the API was asked")
	s.awaitSynced(s.publishAs("two"))
	if r, ok := s.resultOf(entry); ok {
		t.Errorf("the change whose token is missing has a result: %s", r.Type)
	}
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

// TestCraftedTreesTakeLittleMemory syncs six repositories at once of a few kilobytes whose trees have ten billion files: they nest ten levels deep, each
// with ten times the next one. A further kind is a line.
func TestCraftedTreesTakeLittleMemory(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	const most = 768 << 20                       // the garbage of one beside the next; the manifests allow 900 MiB
	for name, prefix := range map[string]string{ // of the names at each level
		"many files": "", "paths of 2 KB": strings.Repeat("x", 200),
	} {
		t.Run(name, func(t *testing.T) {
			git := proctest.StartGit(t)
			var urls []string
			for n := range 6 {
				repo := fmt.Sprint("acme/crafted-", n)
				craftTree(t, git, repo, prefix)
				urls = append(urls, git.URL(repo))
			}
			s := startService(t, nil, "--slots", "6")
			for _, url := range urls {
				s.publish(url)
			}
			proctest.Eventually(t, func() bool { return len(s.results()) == len(urls) }, "results of all repositories")
			if peak := peakMemory(t, s.process.Cmd.Process.Pid); peak > most {
				t.Errorf("%d MiB of memory in use before all are refused, want at most %d", peak>>20, most>>20)
			}
			for _, r := range s.results() {
				if r.Type != events.ResultFailed {
					t.Errorf("%s %s, want it refused", r.Type, r.Repo)
				}
			}
		})
	}
}

// craftTree creates a repository whose tree has ten billion files. prefix starts the names at each level.
func craftTree(t *testing.T, git *gitserver.Server, repo, prefix string) {
	t.Helper()
	proctest.Must(0, git.CreateEmpty(t.Context(), repo))(t)
	object := proctest.Must(git.Git(t.Context(), repo, repo, "hash-object", "-w", "--stdin"))(t)
	for level, mode := 0, "100644 blob"; level < 10; level, mode = level+1, "040000 tree" {
		var entries strings.Builder
		for i := range 10 {
			fmt.Fprintf(&entries, "%s %s\t%s%d\n", mode, object, prefix, i)
		}
		object = proctest.Must(git.Git(t.Context(), repo, entries.String(), "mktree"))(t)
	}
	commit := proctest.Must(git.Git(t.Context(), repo, "", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit-tree", "-m", "x", object))(t)
	proctest.Must(0, git.SetRef(t.Context(), repo, "refs/heads/main", commit))(t)
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

// A change that failed while its host was away waits for its own backoff, about as long again as the host was away: those that
// only waited for the host begin at once.
func TestChangeThatFailedIsSyncedAfterTheOutage(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := startRemote(t, 1, startSameEverywhere(t))
	h.does(drops)
	s := startService(t, nil)
	entry := s.publish(h.url("acme/first"))
	proctest.Eventually(t, func() bool {
		_, answer := s.do("GET", "/api/v1/repos/acme/first", "")
		return strings.Contains(answer, `"class":"network"`)
	}, "the attempt has failed")
	h.does(nil)
	s.awaitSynced(entry)
}
