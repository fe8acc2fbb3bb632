package volume

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// announced returns a request for the default branch that announces a commit.
func (w *world) announced(commit string) SyncRequest {
	req := w.request("")
	req.Announced = commit
	return req
}

// meeting holds a list of refs and a fetch until both have arrived.
type meeting struct {
	on     atomic.Bool
	here   map[string]chan struct{}
	arrive map[string]func() // closes it
}

func newMeeting() *meeting {
	m := &meeting{here: map[string]chan struct{}{}, arrive: map[string]func(){}}
	for _, service := range []string{"info/refs", "git-upload-pack"} {
		arrived := make(chan struct{})
		m.here[service] = arrived
		m.arrive[service] = sync.OnceFunc(func() { close(arrived) }) // a cancelled request may arrive late
	}
	return m
}

func (m *meeting) pass(ctx context.Context, _, service string) {
	if !m.on.Load() {
		return
	}
	m.arrive[service]()
	for _, other := range m.here {
		select {
		case <-other:
		case <-ctx.Done():
		}
	}
}

// TestAnnouncedPushTakesTwoRequestsAtOnce counts the requests of a push. Both are in flight at the same time.
func TestAnnouncedPushTakesTwoRequestsAtOnce(t *testing.T) {
	t.Parallel()
	m := newMeeting()
	w := newWorld(t, gitserver.WithBefore(m.pass))
	w.create(map[string]string{"a": "1"})
	w.sync("")
	commit := w.push(map[string]string{"a": "2"})
	before := w.git.Stats(widgets)
	m.on.Store(true)
	gate := &tryingGate{}
	req := w.announced(commit)
	req.Gate = gate

	res := testenv.Must(w.volume.Sync(testenv.Context(t), req))(t)

	m.on.Store(false)
	after := w.git.Stats(widgets)
	if after.InfoRefs-before.InfoRefs != 1 || after.UploadPacks-before.UploadPacks != 1 || after.Capabilities != before.Capabilities {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if res.After != commit || len(res.Files) != 1 || !res.Asked {
		t.Errorf("got %+v", res)
	}
	if gate.entered != 1 || gate.tried != 1 || gate.open != 0 || gate.most != 2 {
		t.Errorf("%+v", gate)
	}
	w.mustBeSound(widgets, commit)
	mustBeTidy(t, w)
}

// tryingGate admits requests. It refuses optional ones if full is set.
type tryingGate struct {
	full bool

	mu                         sync.Mutex
	entered, tried, open, most int
}

func (g *tryingGate) Enter(context.Context, string) (wire.Permit, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entered++
	g.open++
	g.most = max(g.most, g.open)
	return g, nil
}

func (g *tryingGate) TryEnter(ctx context.Context, host string) (wire.Permit, error) {
	g.mu.Lock()
	g.tried++
	full := g.full
	if !full {
		g.entered--
	}
	g.mu.Unlock()
	if full {
		return nil, errHostLimited
	}
	return g.Enter(ctx, host)
}

func (g *tryingGate) Done(ctx context.Context, _ wire.Answer) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	return ctx.Err()
}

// TestSpeculationIsOnlyAHint announces commits that the ref does not name, or that must not be fetched ahead.
func TestSpeculationIsOnlyAHint(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		announce func(w *world, first, second string) SyncRequest
		fetches  int  // of the sync to the second commit
		later    bool // whether the next push is fetched ahead
	}{
		"another commit of the branch": {func(w *world, first, second string) SyncRequest {
			return w.announced(testenv.Must(w.git.Git(w.t.Context(), widgets, "", "rev-parse", "main~1"))(w.t))
		}, 2, false},
		"an unknown commit":     {func(w *world, _, _ string) SyncRequest { return w.announced(strings.Repeat("1", 40)) }, 2, true},
		"a commit that is held": {func(w *world, first, _ string) SyncRequest { return w.announced(first) }, 1, true},
		"no commit":             {func(w *world, _, _ string) SyncRequest { return w.announced("xyz") }, 1, true},
		"a host at its limit": {func(w *world, _, second string) SyncRequest {
			req := w.announced(second)
			req.Gate = &tryingGate{full: true}
			return req
		}, 1, true},
		"a gate for required requests only": {func(w *world, _, second string) SyncRequest {
			req := w.announced(second)
			req.Gate = &countingGate{left: 2}
			return req
		}, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMeeting()
			w := newWorld(t, gitserver.WithBefore(m.pass))
			first := w.create(map[string]string{"a": "1"})
			w.sync("")
			w.push(map[string]string{"a": "between"})
			second := w.push(map[string]string{"a": "2"})
			before := w.git.Stats(widgets).UploadPacks

			res := testenv.Must(w.volume.Sync(t.Context(), tc.announce(w, first, second)))(t)

			if n := w.git.Stats(widgets).UploadPacks - before; res.After != second || n > tc.fetches {
				t.Errorf("got %s after %d fetches, want %s after %d", res.After, n, second, tc.fetches)
			}
			w.mustBeSound(widgets, second)
			mustBeTidy(t, w)
			third := w.push(map[string]string{"a": "3"})
			m.on.Store(tc.later) // the requests wait for each other, which would hang without speculation
			testenv.Must(w.volume.Sync(testenv.Context(t), w.announced(third)))(t)
			w.mustBeSound(widgets, third)
		})
	}
}

// TestNothingIsKeptOfARefusedSpeculation announces a commit to an app whose credential is refused.
func TestNothingIsKeptOfARefusedSpeculation(t *testing.T) {
	t.Parallel()
	m := newMeeting()
	w := newWorld(t, gitserver.WithBefore(m.pass))
	first := w.create(map[string]string{"a": "1"})
	w.sync("")
	commit := w.push(map[string]string{"a": "2"})
	w.git.RequireAuth(widgets, "ada", secret)

	_, err := w.volume.Sync(t.Context(), w.announced(commit))

	testenv.MustFail(t, err, events.ClassAuth, events.Permanent)
	w.mustBeSound(widgets, first)
	mustBeTidy(t, w)
	store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
	if _, err := gitserver.Git(t.Context(), store.dir, "", "cat-file", "-e", commit); err == nil {
		t.Error("the store has the commit")
	}
}

// TestRefusalsEndSpeculation uses a remote that refuses the first fetch of each commit, as if it were not advertised.
func TestRefusalsEndSpeculation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	target := testenv.Must(url.Parse(w.git.URL(widgets)))(t)
	pool := &http.Transport{}
	forward := &httputil.ReverseProxy{Transport: pool, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
	}}
	var mu sync.Mutex
	refuse, fetches := "", 0
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		isFetch := bytes.Contains(body, []byte("command=fetch"))
		refused := isFetch && refuse != "" && bytes.Contains(body, []byte("want "+refuse))
		if isFetch {
			fetches++
		}
		if refused {
			refuse = ""
		}
		mu.Unlock()
		if refused {
			_, _ = io.WriteString(rw, "0044ERR upload-pack: not our ref 1111111111111111111111111111111111")
			return
		}
		forward.ServeHTTP(rw, r)
	}))
	t.Cleanup(func() {
		server.Close()
		pool.CloseIdleConnections()
	})
	sync := func(commit string) int {
		t.Helper()
		mu.Lock()
		refuse, fetches = commit, 0
		mu.Unlock()
		req := w.announced(commit)
		req.URL = server.URL + target.Path
		if res := testenv.Must(w.volume.Sync(t.Context(), req))(t); commit != "" && res.After != commit {
			t.Errorf("got %+v", res)
		}
		mu.Lock()
		defer mu.Unlock()
		refuse = ""
		return fetches
	}
	sync("")
	for i, content := range []string{"2", "3"} {
		if n := sync(w.push(map[string]string{"a": content})); n != 2 {
			t.Errorf("push %d: %d fetches, want a refused one and another", i+1, n)
		}
	}
	commit := w.push(map[string]string{"a": "4"})
	mu.Lock()
	fetches = 0
	mu.Unlock()
	req := w.announced(commit)
	req.URL = server.URL + target.Path
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	if fetches != 1 {
		t.Errorf("%d fetches", fetches)
	}
	w.mustBeSound(widgets, commit)
}
