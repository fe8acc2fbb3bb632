package e2e

import (
	"encoding/json"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// trouble is something that goes wrong in a deployment.
type trouble struct {
	says *regexp.Regexp // in the verdict
	see  string         // where that sends its reader
	mend func()
}

// concern is a line of a verdict.
type concern struct{ Text, See string }

type verdict struct {
	Health string
	Needs  []concern `json:"needs_a_person"`
	Waits  []concern
}

func (v verdict) has(tr trouble) bool {
	for _, c := range append(v.Needs, v.Waits...) {
		if tr.says.MatchString(c.Text) && c.See == tr.see {
			return true
		}
	}
	return false
}

// TestTroublesAtOnce has the troubles of a bad night at once. Each is in the verdict, the same on the command line, in the
// API and on the dashboard, and is gone once it is over.
func TestTroublesAtOnce(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	git, limited := proctest.StartGit(t), proctest.StartGit(t)
	var app atomic.Int32 // status that the app answers
	app.Store(http.StatusInternalServerError)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(app.Load())) }))
	t.Cleanup(hook.Close)
	create := func(git *gitserver.Server, repo string) string {
		t.Helper()
		return proctest.Must(git.Create(t.Context(), repo, map[string]string{"a": repo}))(t)
	}
	for _, repo := range []string{"acme/good", "acme/secret", "acme/late", "acme/old"} {
		create(git, repo)
	}
	create(limited, "acme/limited")
	git.AcceptTokens("acme/secret", "new")
	env := append(credentialFor("ROBOT", "old", strings.TrimSuffix(git.URL("x"), "x.git")),
		"LOCKSTEP_CREDENTIAL_HOOK_SIGNING_SECRET=s3cret-of-24-characters", "LOCKSTEP_CREDENTIAL_HOOK_URLS="+hook.URL+"/")
	server := redistest.Start(t)
	s := startServiceOn(t, server, env, "--roles", "receiver,worker,notifier", "--notify-hosts", "127.0.0.1")
	lockstep := func(args ...string) string {
		t.Helper()
		out, stderr, code := proctest.RunLockstep(t, nil, append(args, "--redis", server.URL())...)
		if code != 0 {
			t.Fatalf("lockstep %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
		}
		return out
	}

	other := proctest.Start(t, "serve", "--roles", "worker", "--worker", "lost-1", "--redis", server.URL(), "--root", s.root)
	other.AwaitLog("worker takes changes")
	other.Kill()
	s.watch(map[string]any{"app": "docs", "url": git.URL("acme/good"), "poll": "never", "notify_url": hook.URL + "/", "notify_secret": "hook"})
	s.watch(map[string]any{"app": "docs", "url": git.URL("acme/old")})
	s.awaitSynced(s.publish(git.URL("acme/old"), "app", "docs"))
	long := redis.Z{Score: float64(time.Now().Add(-time.Hour).UnixMilli()), Member: "acme/old"}
	proctest.Must(s.client.ZAdd(t.Context(), "lockstep:{0}:poll", long).Result())(t)
	s.awaitSynced(s.publish(git.URL("acme/good"), "app", "docs"))
	s.publish(git.URL("acme/secret"), "app", "docs", "credential", "robot")
	limited.LimitToken("", time.Hour)
	s.publish(limited.URL("acme/limited"))
	s.publish("no URL")
	head := proctest.Must(git.Commit(t.Context(), "acme/late", "hidden", gitserver.Edit{Write: map[string]string{"a": "later"}}))(t)
	s.awaitSynced(s.publish(git.URL("acme/late"), "ref", "main"))
	s.publish(git.URL("acme/late"), "ref", "main", "after", head)

	troubles := map[string]trouble{
		"a refused credential": {regexp.MustCompile(`^auth, credential robot: 1 repository, acme/secret`), "repos", func() {
			git.AcceptTokens("acme/secret", "old")
			s.awaitSynced(s.publish(git.URL("acme/secret"), "app", "docs", "credential", "robot"))
		}},
		"a limited host": {regexp.MustCompile(`^127\.0\.0\.1:\d+: rate limit until .*, 1 repository waits`), "hosts", func() {
			limited.LimitToken("", 0)
			lockstep("hosts", "clear", strings.Split(limited.URL(""), "/")[2])
		}},
		"a dead app": {regexp.MustCompile(`^notifications to docs about 1 repository`), "notify", func() {
			app.Store(http.StatusOK)
			lockstep("notify", "send", "docs")
		}},
		"a killed worker": {regexp.MustCompile(`^1 worker is missing: lost-1 since `), "workers", func() { lockstep("workers", "rm", "lost-1") }},
		"an old poll": {regexp.MustCompile(`^no scheduler polls: 1 repository is overdue, since `), "workers", func() {
			proctest.Start(t, "serve", "--roles", "scheduler", "--redis", server.URL(), "--root", s.root)
		}},
		"a poisonous change": {regexp.MustCompile(`^1 dead letter$`), "dead", func() { lockstep("dead", "drop", "--all") }},
	}

	announced := regexp.MustCompile(`announced .*not visible yet`) // a few minutes of that are no trouble
	if out := lockstep("repos", "show", "acme/late"); !announced.MatchString(out) {
		t.Errorf("repos show has %s", out)
	}

	if out := lockstep("repos", "show", "acme/secret"); !strings.Contains(out, "refused the credential robot (HTTP 401)") {
		t.Errorf("repos show has %s", out)
	}

	var seen verdict
	read := func() verdict {
		t.Helper()
		seen = verdict{}
		proctest.Must(0, json.Unmarshal([]byte(lockstep("status", "-o", "json")), &seen))(t)
		return seen
	}
	proctest.Eventually(t, func() bool {
		v := read()
		for _, tr := range troubles {
			if !v.has(tr) {
				return false
			}
		}
		return v.Health == "attention"
	}, "all troubles are in the verdict, which is %+v", &seen)
	var overHTTP verdict
	status, answer := s.do("GET", "/api/v1/status", "")
	if err := json.Unmarshal([]byte(answer), &overHTTP); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	for name, tr := range troubles {
		if !overHTTP.has(tr) {
			t.Errorf("the API lacks %s: %s", name, answer)
		}
	}
	page := ""
	shows := func(text string) func() bool {
		return func() bool {
			_, page = s.do("GET", "/", "")
			return strings.Contains(html.UnescapeString(page), text)
		}
	}
	for _, c := range append(seen.Needs, seen.Waits...) {
		proctest.Eventually(t, shows(c.Text), "the overview has %q: %s", c.Text, &page)
	}
	proctest.Must(0, git.SetRef(t.Context(), "acme/late", "refs/heads/main", head))(t)
	proctest.Eventually(t, func() bool { return !announced.MatchString(lockstep("repos", "show", "acme/late")) }, "the announced commit is synced")
	for name, tr := range troubles {
		tr.mend()
		proctest.Eventually(t, func() bool { return !read().has(tr) }, "the end of %s: %+v", name, &seen)
	}
	proctest.Eventually(t, func() bool { return read().Health == "ok" }, "all is well: %+v", &seen)
}
