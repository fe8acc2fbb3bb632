package volume

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// before returns a proxy of the Git server that calls wait before each request is served.
func (w *world) before(wait func(r *http.Request)) (base string) {
	w.t.Helper()
	target := testenv.Must(url.Parse(strings.TrimSuffix(w.git.URL("x"), "/x.git")))(w.t)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of requests that were cancelled
	server := httptest.NewServer(http.HandlerFunc(func(res http.ResponseWriter, req *http.Request) {
		wait(req)
		proxy.ServeHTTP(res, req)
	}))
	w.t.Cleanup(server.Close)
	return server.URL
}

// many makes acme/widgets with n submodules, each of a separate repository, and returns their paths.
func (w *world) many(n int) (paths []string) {
	w.t.Helper()
	commits, urls := map[string]string{}, map[string]string{}
	for i := range n {
		path := fmt.Sprintf("part%02d", i)
		commits[path], urls[path] = w.createAt("parts/"+path, map[string]string{"f": path}), "../../parts/"+path+".git"
		paths = append(paths, path)
	}
	testenv.Must(0, w.git.CreateEmpty(w.t.Context(), widgets))(w.t)
	w.withParts(widgets, commits, urls, map[string]string{"a": "1"})
	return paths
}

func (w *world) mustHave(paths []string) {
	w.t.Helper()
	tree := readTree(w.t, w.path(widgets))
	for _, path := range paths {
		if tree[path+"/f"] != path {
			w.t.Errorf("%s/f is %q", path, tree[path+"/f"])
		}
	}
}

// together blocks requests until n are in flight at once.
type together struct {
	mu      sync.Mutex
	n, most int
	now     int
	once    sync.Once
	enough  chan struct{}
}

func (g *together) wait(r *http.Request) {
	if !strings.Contains(r.URL.Path, "/parts/") {
		return
	}
	g.mu.Lock()
	g.now++
	if g.most = max(g.most, g.now); g.now == g.n {
		g.once.Do(func() { close(g.enough) }) // as many may be in flight again
	}
	g.mu.Unlock()
	select {
	case <-g.enough:
	case <-r.Context().Done():
	case <-time.After(time.Minute):
	}
	g.mu.Lock()
	g.now--
	g.mu.Unlock()
}

// TestSubmodulesAreFetchedAtOnce has a server that answers once eight requests for submodules are in flight.
func TestSubmodulesAreFetchedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	paths := w.many(maxFetches)
	requests := &together{n: maxFetches, enough: make(chan struct{})}
	req := w.requestParts(events.SubmodulesRequired)
	req.URL = w.before(requests.wait) + "/acme/widgets.git"
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	w.mustHave(paths)
	if requests.most != maxFetches {
		t.Errorf("%d requests at once, want %d", requests.most, maxFetches)
	}
	mustBeTidy(t, w)
}

// TestSubmodulesAreLimited fetches submodules from a host with few places for requests.
func TestSubmodulesAreLimited(t *testing.T) {
	t.Parallel()
	for _, places := range testenv.Form([]int{2}, []int{1, 2, 3}) {
		t.Run(fmt.Sprint(places), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			paths := w.many(testenv.Form(6, 12))
			limiter := &requestLog{places: make(chan struct{}, places)}
			req := w.requestParts(events.SubmodulesRequired)
			req.Limiter = limiter
			testenv.Must(w.volume.Sync(t.Context(), req))(t)
			w.mustHave(paths)
			if limiter.most != places || limiter.open > 0 {
				t.Errorf("%d requests in flight at most, %d still; want %d", limiter.most, limiter.open, places)
			}
		})
	}
}

// TestSubmodulesWaitForABlockedHost has the host blocked of submodules: the sync is repeated, not failed.
func TestSubmodulesWaitForABlockedHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.many(3)
	limiter := atMost(0)
	req := w.requestParts(events.SubmodulesBestEffort)
	req.Submodule = func(context.Context, string) (PartRemote, error) { return PartRemote{Limiter: limiter}, nil }
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	if w.published() != "" || limiter.asked == 0 {
		t.Errorf("published %q; %d requests that wait", w.published(), limiter.asked)
	}
}

// TestOneCommitInManySubmodules has one commit at many paths, some of them nested.
func TestOneCommitInManySubmodules(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	leaf := w.createAt("acme/leaf", map[string]string{"f": "1"})
	w.createAt("acme/mid", map[string]string{"m": "1"})
	mid := w.withParts("acme/mid", map[string]string{"leaf": leaf}, map[string]string{"leaf": "../leaf.git"}, nil)
	commits, urls := map[string]string{}, map[string]string{}
	for i := range 6 {
		path := fmt.Sprintf("p%02d", i)
		commits[path], urls[path] = leaf, "../leaf.git"
		if i%2 == 0 {
			commits[path], urls[path] = mid, "../mid.git"
		}
	}
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, commits, urls, map[string]string{"a": "1"})
	w.syncParts(events.SubmodulesRequired)
	w.mustBeAsCloned("many")
	if got := len(w.parts()); got != 2 {
		t.Errorf("%d stores, want one for each commit", got)
	}
	w.mustVerify()
}

// TestFirstFailureOfManySubmodulesEndsTheSync has submodules that do not exist beside one that never answers.
func TestFirstFailureOfManySubmodulesEndsTheSync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.many(4)
	testenv.Must(0, w.git.Delete("parts/part02"))(t)
	req := w.requestParts(events.SubmodulesRequired)
	req.URL = w.before(func(r *http.Request) {
		if strings.Contains(r.URL.Path, "/parts/") && !strings.Contains(r.URL.Path, "part02") {
			<-r.Context().Done()
		}
	}) + "/acme/widgets.git"
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassNotFound, events.Permanent)
	if !strings.Contains(err.Error(), `submodule "part02"`) {
		t.Errorf("%v, want it to name the submodule", err)
	}
	mustBeTidy(t, w)
}

// TestTimeOfManySubmodules measures 20 submodules on a server that answers 100 ms late.
func TestTimeOfManySubmodules(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	w := newWorld(t)
	paths := w.many(20)
	base := w.before(func(*http.Request) { time.Sleep(100 * time.Millisecond) })
	began := time.Now()
	req := w.requestParts(events.SubmodulesRequired)
	req.URL = base + "/acme/widgets.git"
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	took := time.Since(began)
	w.mustHave(paths)
	began = time.Now()
	testenv.Must(gitserver.Git(t.Context(), t.TempDir(), "", "clone", "-q", "--depth", "1", "--recurse-submodules", "--shallow-submodules", "--jobs", fmt.Sprint(maxFetches), base+"/acme/widgets.git", "."))(t)
	t.Logf("lockstep %v, git %v", took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}
