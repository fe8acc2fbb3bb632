package handlers

import (
	"context"
	"fmt"

	"lockstep/events"
)

// ViewTreesRequest is a request to [Views].
type ViewTreesRequest struct {
	Repo    events.RepoPath
	App     string
	Path    string // published name of the whole tree, relative to the root
	Tree    string // whole tree, relative to the root
	Views   ViewSet
	Fence   uint64                      // fence of the lease on Repo
	Confirm func(context.Context) error // as in [SyncRequest]
	Changed []string                    // views to return
}

// ViewTree is a published view.
type ViewTree struct {
	Path string // its name, relative to the root
	Tree string // the tree that the name links to, relative to the root
}

// publishViews publishes the trees of the views of a synced result's app, if its watch asks for them, and names them in the results of
// views. It removes the names of views that no watch asks for any more.
func (h *Handlers) publishViews(ctx context.Context, job Job, watches []Watch, synced events.Result, views []events.Result) error {
	if h.Views == nil {
		return nil
	}
	err := h.Views.Unpublish(ctx, synced.Repo, job.Fence, func(app string, ref events.Ref, isDefault bool) bool {
		_, trees := viewsOf(watches, app, ref, isDefault)
		return trees
	})
	if err != nil {
		return fmt.Errorf("unpublish views: %w", err)
	}
	set, trees := viewsOf(watches, synced.App, synced.Ref, synced.IsDefault())
	if !trees {
		return nil
	}
	req := ViewTreesRequest{
		Repo: synced.Repo, App: synced.App, Path: synced.Path, Tree: synced.Tree, Views: set, Fence: job.Fence, Confirm: job.Confirm,
	}
	for _, one := range views {
		req.Changed = append(req.Changed, one.View)
	}
	published, err := h.Views.Publish(ctx, req)
	if err != nil {
		return err
	}
	for i := range views {
		one := published[views[i].View]
		views[i].Path, views[i].Tree = one.Path, one.Tree
	}
	return nil
}
