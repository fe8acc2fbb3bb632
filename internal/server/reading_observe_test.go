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
	sent     map[string]int
	packs    int
}

func (o *observer) Request(kind string, status int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests = append(o.requests, fmt.Sprint(kind, " ", status))
}

func (o *observer) Sent(kind string, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent[kind] += bytes
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
	seen := &observer{sent: map[string]int{}}
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
		"refs 200", "files 200", "files 404", "archive 401", "archive 200", "repos 200", "results 200", "git 200", // results while they are sent
	} {
		if !slices.Contains(seen.requests, want) {
			t.Errorf("no %q in %q", want, seen.requests)
		}
	}
	for _, kind := range []string{"refs", "files", "archive", "repos", "results", "git"} {
		if seen.sent[kind] == 0 {
			t.Errorf("no bytes of %s", kind)
		}
	}
	if seen.packs != 1 {
		t.Errorf("%d packs", seen.packs)
	}
}
