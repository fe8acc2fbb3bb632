package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// requestLog is a limiter that counts requests.
type requestLog struct {
	refuse func(host string, n int) error // for the nth request, from 1; optional
	places chan struct{}                  // one for each request that may be in flight; optional

	mu         sync.Mutex
	hosts      map[string]int
	asked      int
	open, most int // in flight
	answers    []wire.Answer
}

var errHostLimited = events.Errorf(events.Contention, events.ClassBusy, "the host is at its limit")

// atMost refuses the requests after the first n.
func atMost(n int) *requestLog {
	return &requestLog{refuse: func(_ string, i int) error {
		if i > n {
			return errHostLimited
		}
		return nil
	}}
}

func (l *requestLog) Acquire(ctx context.Context, host string) (func(wire.Answer) bool, error) {
	if l.places != nil {
		l.places <- struct{}{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.refuse != nil {
		if err := l.refuse(host, l.asked); err != nil {
			return nil, err
		}
	}
	if l.hosts == nil {
		l.hosts = map[string]int{}
	}
	l.hosts[host]++
	l.open++
	l.most = max(l.most, l.open)
	return func(a wire.Answer) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		l.answers = append(l.answers, a)
		if l.places != nil {
			<-l.places
		}
		return false
	}, nil
}

func TestEachOperationAsksTheLimiter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2"})
	repo, url := repoPath(t, widgets), w.git.URL(widgets)
	other := repoPath(t, "acme/other")
	for name, operation := range map[string]func(limiter wire.Limiter) error{
		"sync": func(limiter wire.Limiter) error {
			req := w.request("")
			req.Limiter = limiter
			_, err := w.volume.Sync(t.Context(), req)
			return err
		},
		"list refs": func(limiter wire.Limiter) error {
			_, err := w.volume.ListRefs(t.Context(), ListRefsRequest{Repo: repo, URL: url, Limiter: limiter})
			return err
		},
		"remove": func(limiter wire.Limiter) error {
			_, err := w.volume.Remove(t.Context(), RemoveRequest{Repo: repo, URL: url, Fence: w.fence.Add(1), Limiter: limiter})
			return err
		},
		"remove ref": func(limiter wire.Limiter) error {
			w.commit("next", gitserver.Edit{Write: map[string]string{"b": "1"}})
			testenv.Must(w.trySync("next"))(t)
			req := w.request("next")
			_, err := w.volume.RemoveRef(t.Context(), RemoveRequest{Repo: repo, URL: url, Ref: req.Ref, Fence: req.Fence, Limiter: limiter})
			return err
		},
		"move": func(limiter wire.Limiter) error {
			testenv.Must(0, w.git.Alias("acme/other", widgets))(t)
			return w.volume.Move(t.Context(), MoveRequest{
				From: repo, To: other, Remote: Remote{URL: w.git.URL("acme/other"), Limiter: limiter},
				Former: []Remote{{URL: url}}, Fence: w.fence.Add(1), ToFence: w.fence.Add(1),
			})
		},
	} {
		limiter := atMost(0)
		err := operation(limiter)
		if !errors.Is(err, errHostLimited) || events.ClassOf(err) != events.ClassBusy || events.DispositionOf(err) != events.Contention {
			t.Errorf("%s: %v, want the limiter's error", name, err)
		}
		if limiter.asked != 1 {
			t.Errorf("%s: asked %d times", name, limiter.asked)
		}
	}
}

func TestSyncHasOneRequestAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	limiter := &requestLog{}
	req := w.request("")
	req.Limiter = limiter
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	w.mustBeSound(widgets, commit)
	if limiter.asked != 2 || limiter.open != 0 || limiter.most != 1 {
		t.Errorf("%+v, want two requests, one after the other", limiter)
	}
}

// TestLimitedFetchIsNotRepeated refuses the fetch after the list of refs, and a full fetch that is due.
func TestLimitedFetchIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
	for _, due := range []bool{false, true} {
		commit := w.push(map[string]string{"a": "2", "due": map[bool]string{true: "yes"}[due]})
		if due {
			testenv.Must(0, os.WriteFile(filepath.Join(store.dir, refetchMark), nil, 0o600))(t)
		}
		limiter := atMost(1)
		req := w.request("")
		req.Limiter = limiter

		_, err := w.volume.Sync(t.Context(), req)

		testenv.MustFail(t, err, events.ClassBusy, events.Contention)
		if limiter.asked != 2 {
			t.Errorf("full fetch due %v: %d requests", due, limiter.asked)
		}
		if store.needsRefetch() != due {
			t.Errorf("full fetch due %v, and after it was refused %v", due, store.needsRefetch())
		}
		w.sync("")
		w.mustBeSound(widgets, commit)
	}
	if store.needsRefetch() && testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t) == store {
		t.Error("the full fetch is still due")
	}
}
