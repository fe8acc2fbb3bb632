package notify

import (
	"context"
	"errors"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/execute"
	"lockstep/internal/watch"
	"lockstep/tree"
)

var (
	errNoTree = errors.New("there is no tree")
	errLost   = errors.New("the claim could not be renewed, command killed")
)

// hasTree reports whether a result names a tree.
func hasTree(r events.Result) bool {
	return r.Type == events.ResultSynced || r.Type == events.ResultView
}

// run runs the command of an app in the tree of a result, and renews the claim meanwhile, so that no other process runs
// it. If the tree is gone, it runs in the one that is published now, once for several results.
func (n *Notifier) run(ctx context.Context, w watch.Watch, c claim, command execute.Command) (err error) {
	result, err := events.ParseResult([]byte(c.item.Body))
	if err != nil || !hasTree(result) { // queued for a URL
		return errNoTree
	}
	name := result.Path // as on the volume, which may differ in case from the watch
	if !w.Repo.Equal(result.Repo) {
		name = w.Repo.String() // the repository has been renamed
		if _, suffix, ok := strings.Cut(result.Path, "@"); ok {
			name += "@" + suffix
		}
	}
	t, err := tree.OpenResult(n.cfg.Root, result)
	isGone := errors.Is(err, tree.ErrGone)
	if isGone {
		t, err = n.current(ctx, name)
	}
	if err != nil {
		return err
	}
	defer t.Close()
	if isGone {
		key := c.app + " " + name
		if last, _ := n.ran.Load(key); last == t.Dir() {
			return nil
		}
		defer func() {
			if err == nil {
				n.ran.Store(key, t.Dir())
			}
		}()
	}
	ctx, stop := context.WithCancelCause(ctx)
	kept := make(chan struct{})
	defer func() { stop(nil); <-kept }()
	keeping, cancel := context.WithTimeout(ctx, command.Timeout+n.cfg.claim) // a run that cannot be killed is given up
	defer cancel()
	go func() { defer close(kept); n.keep(keeping, c, stop) }()
	output, err := command.Run(ctx, t, name, []byte(c.item.Body))
	if output != "" {
		n.cfg.Log.InfoContext(ctx, "command printed", "app", c.app, "name", name, "commit", t.Commit(), "output", output)
	}
	return err
}

// current opens the tree that is published under a name. It fails with errNoTree if there is none any more.
func (n *Notifier) current(ctx context.Context, name string) (*tree.Tree, error) {
	if err := n.cfg.Mounted(ctx); err != nil { // else everything is gone
		return nil, err
	}
	t, err := tree.Open(n.cfg.Root, name)
	if errors.Is(err, tree.ErrNotPublished) {
		return nil, errNoTree
	}
	return t, err
}

// keep renews a claim until ctx is done. If that fails, it calls lost before the claim ends.
func (n *Notifier) keep(ctx context.Context, c claim, lost context.CancelCauseFunc) {
	third := n.cfg.claim / 3
	for ends := c.since.Add(n.cfg.claim); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(third, time.Until(ends)-third)):
		}
		at := time.Now()
		renewing, cancel := context.WithTimeout(ctx, third/2)
		held, err := n.outbox.settle(renewing, c, settlement{what: isKept, delay: n.cfg.claim})
		cancel()
		switch {
		case held:
			ends = at.Add(n.cfg.claim)
		case err == nil, time.Until(ends) <= third:
			lost(errLost)
			return
		}
	}
}
