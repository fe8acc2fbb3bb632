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
	errNoTree = errors.New("the result names no tree")
	errLost   = errors.New("the claim could not be renewed, command killed")
)

// hasTree reports whether a result names a tree.
func hasTree(r events.Result) bool {
	return r.Type == events.ResultSynced || r.Type == events.ResultView
}

// run runs the command of an app in the tree of a result, and renews the claim meanwhile, so that no other process runs
// it. If the tree is gone, it runs in the one that is published now.
func (n *Notifier) run(ctx context.Context, w watch.Watch, c claim, command execute.Command) error {
	result, err := events.ParseResult([]byte(c.item.Body))
	if err != nil || !hasTree(result) { // queued for a URL
		return errNoTree
	}
	name := w.Repo.String() + strings.TrimPrefix(result.Path, result.Repo.String()) // the repository may have been renamed
	t, err := tree.OpenResult(n.cfg.Root, result)
	if errors.Is(err, tree.ErrGone) {
		t, err = tree.Open(n.cfg.Root, name)
	}
	if err != nil {
		return err
	}
	defer t.Close()
	ctx, stop := context.WithCancelCause(ctx)
	kept := make(chan struct{})
	defer func() { stop(nil); <-kept }()
	go func() { defer close(kept); n.keep(ctx, c, stop) }()
	output, err := command.Run(ctx, t, name, []byte(c.item.Body))
	if output != "" {
		n.cfg.Log.InfoContext(ctx, "command printed", "app", c.app, "name", name, "commit", t.Commit(), "output", output)
	}
	return err
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
		held, err := n.outbox.keep(renewing, c)
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
