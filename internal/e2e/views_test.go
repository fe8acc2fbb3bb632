package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
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
