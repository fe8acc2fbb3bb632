package server_test

import (
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"lockstep/events"
)

// observer records what it observes.
type observer struct {
	mu       sync.Mutex
	requests []string
	packs    int
}

func (o *observer) Request(kind string, status int, bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests = append(o.requests, fmt.Sprint(kind, " ", status, " ", bytes > 0))
}

func (o *observer) Pack(bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.packs++
}

func TestRequestsOfReadersAreObserved(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.depth = events.DepthFull
	seen := &observer{}
	l.cfg.Reading.Observer = seen
	l.serve()
	l.sync("acme/widgets", "", "docs")
	l.get(l.docs, "acme/widgets/refs")
	l.get(l.docs, "acme/widgets/files/README")
	l.get(l.docs, "acme/widgets/files/none")
	l.get("wrong", "acme/widgets/archive")
	l.get(l.docs, "acme/widgets/archive")
	l.get(l.docs, "acme/widgets")
	_, next := l.events(l.docs, "")
	next()
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "-q", l.gitURL(l.docs, "acme/widgets"), t.TempDir()+"/clone").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, want := range []string{
		"refs 200 true", "files 200 true", "files 404 true", "archive 401 true", "archive 200 true", "repos 200 true", "results 200 false", "git 200 true",
	} {
		if !slices.Contains(seen.requests, want) {
			t.Errorf("no %q in %q", want, seen.requests)
		}
	}
	if seen.packs != 1 {
		t.Errorf("%d packs", seen.packs)
	}
}
