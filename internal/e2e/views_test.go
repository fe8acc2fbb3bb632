package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	extviews "lockstep/internal/ext/views"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
	"lockstep/internal/watch"
)

// sendWebhook sends the webhook of a push to main of acme/widgets.
func sendWebhook(t *testing.T, addr, id, url, after string) {
	t.Helper()
	webhook{id: id, repo: "acme/widgets", url: url, before: noCommit, after: after}.mustSend(t, addr)
}

func TestChangedViewIsPosted(t *testing.T) {
	t.Parallel()
	git, server := proctest.StartGit(t), redistest.Start(t)
	proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"api/a": "1", "web/a": "1", "README": "1"}))(t)
	notified := make(chan events.Result, 10)
	posts := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if r, err := events.ParseResult(body); err == nil {
			notified <- r
		}
	}))
	defer posts.Close()
	credentials := t.TempDir()
	proctest.Must(0, os.Mkdir(filepath.Join(credentials, "hook"), 0o700))(t)
	for file, text := range map[string]string{"signingSecret": "s3cret-of-24-characters\n", "urls": posts.URL + "/\n"} {
		proctest.Must(0, os.WriteFile(filepath.Join(credentials, "hook", file), []byte(text), 0o600))(t)
	}
	root := t.TempDir()
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", root, "--credentials", credentials,
		"--roles", "worker,notifier", "--notify-hosts", "127.0.0.1")
	p.AwaitLog("consumer group created")
	proctest.Must(watch.NewRegistry(server.Client(), events.DefaultNamespace).Put(t.Context(), watch.Watch{
		App: "argo", URL: git.URL("acme/widgets"), Poll: watch.Never, NotifyURL: posts.URL + "/hook", NotifySecret: "hook",
		Options: watch.With(extviews.Options{
			Views: proctest.Must(view.New(map[string][]string{"api": {"api"}, "web": {"web"}}))(t), Trees: true,
		}),
	}))(t)
	next := func(want string) events.Result {
		t.Helper()
		select {
		case r := <-notified:
			if r.Type != events.ResultView || r.View != want {
				t.Fatalf("notified of %+v, want view %s", r, want)
			}
			return r
		case <-time.After(time.Minute):
			t.Fatalf("not notified of %s", want)
		}
		return events.Result{}
	}
	next("api")
	first := next("web")
	sync := func(files map[string]string) {
		t.Helper()
		proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: files}))(t)
		if stdout, stderr, code := proctest.RunLockstep(t, nil, "publish", git.URL("acme/widgets"), "--app", "argo", "--wait", "--redis", server.URL()); code != 0 {
			t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
		}
	}
	sync(map[string]string{"README": "2"})
	sync(map[string]string{"web/a": "2"})
	if r := next("web"); r.Subtree == first.Subtree || len(r.Files) != 1 || r.Files[0].Path != "web/a" {
		t.Errorf("notified of %+v", r)
	} else if content, err := os.ReadFile(filepath.Join(root, r.Tree, "web/a")); err != nil || string(content) != "2" || r.Path != "acme/widgets@~/argo/web" {
		t.Errorf("the view has %q at %s, %v", content, r.Path, err)
	}
	if entries := proctest.Must(os.ReadDir(filepath.Join(root, "acme/widgets@~/argo/web")))(t); len(entries) != 2 { // and .git
		t.Errorf("the view has %v", entries)
	}
}

// TestViewsUnderKill9 pushes with webhooks while the worker is killed at random times. In the stream, each result of a sync is
// followed by one for each view whose folder differs from that of the app's previous result, and for no other. If another
// commit follows one whose worker died after it had published it, all is given whole.
func TestViewsUnderKill9(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const folders = 300
	git, root, dir := proctest.StartGit(t), t.TempDir(), t.TempDir()
	server := redistest.Start(t)
	random := rand.New(rand.NewPCG(rand.Uint64(), 5))
	files, views := map[string]string{}, map[string][]string{}
	for i := range folders {
		files[fmt.Sprintf("svc%d/main.go", i)], views[fmt.Sprint("svc", i)] = "0", []string{fmt.Sprint("svc", i)}
	}
	proctest.Must(git.Create(t.Context(), "acme/widgets", files))(t)
	proctest.Must(watch.NewRegistry(server.Client(), events.DefaultNamespace).Put(t.Context(), watch.Watch{
		App: "argo", URL: git.URL("acme/widgets"), Poll: watch.Never, Options: watch.With(extviews.Options{Views: proctest.Must(view.New(views))(t), Trees: true}),
	}))(t)
	_, addr := startReceiver(t, server, dir)
	serve := func() *proctest.Process {
		return proctest.Start(t, "serve", "--roles", "worker", "--redis", server.URL(), "--root", root, "--lease", "1s", "--lock-wait", "30s")
	}
	worker, head, kills := serve(), "", 0
	for i := range testenv.Soak(20, 40) {
		edit := gitserver.Edit{Write: map[string]string{}}
		for range 1 + random.IntN(5) {
			svc := fmt.Sprint("svc", random.IntN(folders))
			if random.IntN(4) == 0 {
				edit.Delete = append(edit.Delete, svc)
			} else {
				edit.Write[svc+"/main.go"] = fmt.Sprint(random.IntN(3))
			}
		}
		head = proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, edit))(t)
		sendWebhook(t, addr, fmt.Sprint("d", i), git.URL("acme/widgets"), head)
		redisx.Pause(t.Context(), time.Duration(random.IntN(700))*time.Millisecond) // at a random time
		if random.IntN(3) == 0 {
			kills++
			worker.Kill()
			worker = serve()
		}
	}
	var results []events.Result
	proctest.Eventually(t, func() bool {
		results = nil
		for _, entry := range proctest.Must(server.Client().XRange(t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(t) {
			results = append(results, proctest.DecodeResult(t, entry))
		}
		for _, r := range results {
			if r.Type == events.ResultSynced && r.App == "argo" && r.After == head {
				return true
			}
		}
		return false
	}, "the result of %s", head)
	last, syncs := map[string]string{}, 0
	for i := 0; i < len(results); i++ {
		r := results[i]
		if r.Type != events.ResultSynced || r.App != "argo" || r.Views == nil {
			if r.Type == events.ResultView {
				t.Errorf("a result of view %s without its sync", r.View)
			}
			continue
		}
		syncs++
		got := map[string]bool{}
		for range r.Views.Changed {
			i++
			if v := results[i]; v.Type != events.ResultView || v.After != r.After || v.ID != r.ID+"/"+v.View {
				t.Fatalf("%+v follows %+v", v, r)
			}
			got[results[i].View] = true
		}
		now := map[string]string{}
		for line := range strings.Lines(proctest.Must(git.Git(t.Context(), "acme/widgets", "", "ls-tree", "-d", r.After))(t)) {
			_, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			now[name] = line
		}
		for name := range views {
			isWhole := r.Full && kills > 0
			if differs := syncs == 1 || now[name] != last[name]; differs && !got[name] || !differs && got[name] && !isWhole {
				t.Errorf("sync %d, at %s: %s has a result: %v, its folder differs: %v", syncs, r.After, name, got[name], differs)
			}
		}
		last = now
	}
	t.Logf("%d kills, %d syncs, %d results", kills, syncs, len(results))
	for name := range views {
		want, _ := git.Git(t.Context(), "acme/widgets", "", "show", head+":"+name+"/main.go")
		content, err := os.ReadFile(filepath.Join(root, "acme/widgets@~/argo", name, name, "main.go"))
		if strings.TrimSpace(string(content)) != want || err != nil && (want != "" || !errors.Is(err, os.ErrNotExist)) {
			t.Errorf("the tree of %s has %q, %v; want %q", name, content, err, want)
		}
	}
}

// TestTenThousandViews adds a watch with 10,000 views, all of which have a result at first, and pushes to ten of them.
func TestTenThousandViews(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	for _, trees := range []bool{false, true} {
		t.Run(fmt.Sprintf("trees=%v", trees), func(t *testing.T) { tenThousandViews(t, trees) })
	}
}

func tenThousandViews(t *testing.T, trees bool) {
	const folders = 1000
	git, server := proctest.StartGit(t), redistest.StartReal(t)
	files, views := map[string]string{}, map[string][]string{}
	for i := range folders {
		files[fmt.Sprintf("team%d/svc%d/main.go", i%50, i)] = "0"
		for n := range view.MaxViews / folders {
			views[fmt.Sprintf("svc%d-%d", i, n)] = []string{fmt.Sprintf("team%d/svc%d", i%50, i), fmt.Sprintf("lib/lib%d", n)}
		}
	}
	proctest.Must(git.Create(t.Context(), "acme/widgets", files))(t)
	redis := server.Client()
	proctest.Must(redis.ConfigSet(t.Context(), "slowlog-log-slower-than", "5000").Result())(t)
	proctest.Start(t, "serve", "--roles", "worker", "--redis", server.URL(), "--root", t.TempDir())
	registry := watch.NewRegistry(redis, events.DefaultNamespace)
	began := time.Now()
	proctest.Must(registry.Put(t.Context(), watch.Watch{
		App: "argo", URL: git.URL("acme/widgets"), Poll: watch.Never, Options: watch.With(extviews.Options{Views: proctest.Must(view.New(views))(t), Trees: trees}),
	}))(t)
	counts := func(results []events.Result) (views int, counted events.ViewCounts) {
		for _, r := range results {
			switch {
			case r.Type == events.ResultView:
				views++
			case r.Views != nil:
				counted = *r.Views
			}
		}
		return views, counted
	}
	results := proctest.AwaitResults(t, redis, 2+view.MaxViews) // of the poll, the sync and the views
	if n, counted := counts(results); n != view.MaxViews || counted.Changed != n {
		t.Errorf("%d results of views, counted %+v", n, counted)
	}
	t.Logf("10,000 first results after %v", time.Since(began))
	slowest := time.Duration(0)
	for _, call := range proctest.Must(redis.SlowLogGet(t.Context(), -1).Result())(t) {
		slowest = max(slowest, call.Duration)
	}
	t.Logf("the longest call of Redis took %v", slowest)
	proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"team7/svc7/main.go": "1", "README": "1"}}))(t)
	began = time.Now()
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "publish", git.URL("acme/widgets"), "--app", "argo", "--wait", "--redis", server.URL()); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	t.Logf("a push to ten views was settled after %v", time.Since(began))
	results = proctest.AwaitResults(t, redis, len(results)+11)[len(results):]
	if n, counted := counts(results); n != 10 || counted != (events.ViewCounts{Changed: 10, Unchanged: view.MaxViews - 10}) {
		t.Errorf("%d results of views, counted %+v", n, counted)
	}
}
