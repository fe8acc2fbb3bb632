package access

import (
	"cmp"
	"context"
	"runtime"
	"sync"
)

// Turns limits how many calls run at once for each app. The zero value is ready to use.
type Turns struct {
	Max int // default half of the CPUs

	mu sync.Mutex
	by map[string]chan struct{} // running calls, by app
}

// Run calls f once fewer than Max of the app's calls run, and returns its error, or the cause of ctx' end.
func (t *Turns) Run(ctx context.Context, app string, f func() error) error {
	running := t.of(app)
	select {
	case running <- struct{}{}:
		defer func() { <-running }()
		return f()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Turns) of(app string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[string]chan struct{}{}
	}
	if t.by[app] == nil {
		t.by[app] = make(chan struct{}, cmp.Or(t.Max, max(1, runtime.GOMAXPROCS(0)/2)))
	}
	return t.by[app]
}
