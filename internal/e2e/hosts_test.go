package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// A host limits one credential. Status, metrics and the log say so, changes of other credentials and hosts go on, and at the
// end of the block everything is synced without a counted attempt.
func TestLimitedHostDelaysOnlyItsCredential(t *testing.T) {
	t.Parallel()
	const repos, retryAfter = 12, 2 * time.Second
	limited, other, server := proctest.StartGit(t), proctest.StartGit(t), redistest.Start(t)
	client := server.Client()
	create := func(git *gitserver.Server, name string) string {
		t.Helper()
		proctest.Must(git.Create(t.Context(), name, map[string]string{"a": name}))(t)
		return git.URL(name)
	}
	prefix, _, _ := strings.Cut(limited.URL("x"), "x.git")
	host := strings.Trim(strings.TrimPrefix(prefix, "http:"), "/")
	cmd := proctest.Command(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--listen", "127.0.0.1:0", "--slots", "4")
	cmd.Env = append(os.Environ(),
		"LOCKSTEP_CREDENTIAL_ROBOT_PASSWORD="+firstToken, "LOCKSTEP_CREDENTIAL_ROBOT_URLS="+prefix,
		"LOCKSTEP_CREDENTIAL_SPARE_PASSWORD="+secondToken, "LOCKSTEP_CREDENTIAL_SPARE_URLS="+prefix)
	p := proctest.StartCommand(t, cmd)
	addr := p.ListenAddress("listening")
	publish := func(url, credential string) {
		t.Helper()
		add := &redis.XAddArgs{Stream: "lockstep:{0}:changes", Values: []string{"url", url, "credential", credential}}
		proctest.Must(client.XAdd(t.Context(), add).Result())(t)
	}

	limited.LimitToken(firstToken, retryAfter)
	began := time.Now()
	var blocked []string
	for n := range repos {
		name := fmt.Sprint("acme/limited-", n)
		limited.AcceptTokens(name, firstToken)
		publish(create(limited, name), "robot")
		blocked = append(blocked, name)
	}
	var status map[string]any
	var asked time.Time
	proctest.Eventually(t, func() bool {
		asked = time.Now()
		status = hostStatus(t, server.URL(), host)
		return status["reason"] == "rate limit" && status["until"] != nil
	}, "status shows %s limited; it shows %v", host, &status)
	until, shown := proctest.Must(time.Parse(time.RFC3339, status["until"].(string)))(t), time.Now()
	if until.Before(asked.Add(-2*time.Second)) || until.After(shown.Add(retryAfter+2*time.Second)) { // in whole seconds
		t.Errorf("between %v and %v limited until %v, want at most %v", asked, shown, until, retryAfter)
	}
	if text := fmt.Sprint(status["limited_credentials"]); !strings.Contains(text, "credential:robot") || strings.Contains(text, "spare") {
		t.Errorf("limited credentials %s, want robot", text)
	}

	limited.AcceptTokens("acme/spare", secondToken)
	publish(create(limited, "acme/spare"), "spare")
	for n := range repos {
		publish(create(other, fmt.Sprint("acme/other-", n)), "")
	}
	for _, r := range proctest.AwaitResults(t, client, repos+1) { // while the token is limited
		if r.Type != events.ResultSynced || slices.Contains(blocked, r.Repo.String()) {
			t.Errorf("%s %s: %s", r.Type, r.Repo, r.Error)
		}
	}
	samples := samplesOf(t, addr)
	if n := samples[fmt.Sprintf(`lockstep_host_answers_total{host="%s",outcome="limited"}`, host)]; n < 1 {
		t.Errorf("%v limited answers in the metrics", n)
	}
	limited.LimitToken(firstToken, 0)
	sent := 0
	for _, name := range blocked {
		sent += limited.Stats(name).Limited
	}
	if most := repos + 1 + int(time.Since(began)/retryAfter); sent > most { // before the first answer, and one per block
		t.Errorf("%d requests with the limited token, want at most %d", sent, most)
	}
	results := proctest.AwaitResults(t, client, 2*repos+1)
	for _, name := range blocked {
		if !slices.ContainsFunc(results, func(r events.Result) bool { return r.Repo.String() == name && r.Type == events.ResultSynced }) {
			t.Errorf("%s is not synced", name)
		}
	}
	assertNoAttemptCounted(t, addr, 2*repos+1)
	proctest.Eventually(t, func() bool {
		return strings.Contains(p.Log.String(), `msg="host no longer limited"`)
	}, "the end of the block in the log")
	log := p.Log.String()
	if warn := `msg="host limited" `; strings.Count(log, warn) != 1 || strings.Count(log, `msg="host no longer limited"`) != 1 ||
		!strings.Contains(log, "host="+host+" credential=robot reason=\"rate limit\" until=") {
		t.Errorf("want one line for the block and one for its end:\n%s", log)
	}
	if strings.Contains(log, firstToken) || strings.Contains(log, secondToken) {
		t.Error("a token is in the log")
	}
}

// A host names an absurd time, and all processes remember it. Once the operator lifts the block, every change is synced:
// those that the host refused, and those that were parked from memory.
func TestLiftedBlockOfAHost(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const repos = 40
	git, server := proctest.StartGit(t), redistest.Start(t)
	client := server.Client()
	host := strings.Split(git.URL(""), "/")[2]
	git.LimitToken("", 1_000_000_000*time.Second)
	root := t.TempDir()
	var addresses []string
	for range 2 {
		p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", root, "--listen", "127.0.0.1:0", "--slots", "2")
		addresses = append(addresses, p.ListenAddress("listening"))
	}
	for n := range repos {
		name := fmt.Sprint("acme/limited-", n)
		proctest.Must(git.Create(t.Context(), name, map[string]string{"a": name}))(t)
		add := &redis.XAddArgs{Stream: "lockstep:{0}:changes", Values: []string{"url", git.URL(name)}}
		proctest.Must(client.XAdd(t.Context(), add).Result())(t)
	}
	var status map[string]any
	proctest.Eventually(t, func() bool {
		status = hostStatus(t, server.URL(), host)
		return status["reason"] == "rate limit" && status["waiting"] == float64(repos)
	}, "all repositories wait; status shows %v", &status)

	git.LimitToken("", 0)
	began := time.Now()
	if out, stderr, code := proctest.RunLockstep(t, nil, "hosts", "clear", host, "--redis", server.URL()); code != 0 {
		t.Fatalf("hosts clear: exit code %d: %s%s", code, out, stderr)
	}
	proctest.AwaitResults(t, client, 1)
	t.Logf("the first result came after %v", time.Since(began))
	for _, r := range proctest.AwaitResults(t, client, repos) {
		if r.Type != events.ResultSynced || r.Attempts > 1 {
			t.Errorf("%s %s after %d attempts: %s", r.Type, r.Repo, r.Attempts, r.Error)
		}
	}
	t.Logf("the last result came after %v", time.Since(began))
	var deliveries, attempts float64
	for _, addr := range addresses {
		s := samplesOf(t, addr)
		attempts += s.sum("lockstep_message_attempts_sum")
		deliveries += s.sum("lockstep_message_attempts_count")
	}
	if attempts != deliveries {
		t.Errorf("%v deliveries with attempt numbers that add up to %v, want attempt 1 only", deliveries, attempts)
	}
}

// hostStatus returns what lockstep status shows of a host, or nil.
func hostStatus(t *testing.T, redisURL, host string) map[string]any {
	t.Helper()
	out, stderr, code := proctest.RunLockstep(t, nil, "status", "--redis", redisURL, "-o", "json")
	if code != 0 {
		t.Fatalf("status: exit code %d: %s", code, stderr)
	}
	list, _ := proctest.DecodeJSON(t, out)["hosts"].([]any)
	for _, one := range list {
		if h := one.(map[string]any); h["host"] == host {
			return h
		}
	}
	return nil
}

// assertNoAttemptCounted fails the test unless all settled changes were delivered with attempt 1 only.
func assertNoAttemptCounted(t *testing.T, addr string, settled int) {
	t.Helper()
	var s scraped
	proctest.Eventually(t, func() bool {
		s = samplesOf(t, addr)
		return s.sum("lockstep_end_to_end_seconds_count") == float64(settled)
	}, "%d settled changes in the metrics", settled)
	sum, count := s.sum("lockstep_message_attempts_sum"), s.sum("lockstep_message_attempts_count")
	if sum != count || count < float64(settled) {
		t.Errorf("%v deliveries with attempt numbers that add up to %v, want attempt 1 only", count, sum)
	}
}
