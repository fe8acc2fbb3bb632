package handlers

import (
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// publishViews publishes the trees of the views of a synced result's app, if its watch asks for them, and
// names them in the results of views. It removes the names of views that no watch asks for any more.
func (h *Handlers) publishViews(
	ctx context.Context, job Job, watches []watch.Watch, synced events.Result, views []events.Result,
) error {
	err := h.Volume.UnpublishSubtrees(ctx, synced.Repo, job.Fence, func(app string, ref events.Ref, isDefault bool) bool {
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
	err = h.Volume.PublishSubtrees(ctx, volume.SubtreesRequest{
		Repo: synced.Repo, App: synced.App, Path: synced.Path, Tree: synced.Tree, Selections: set,
		Fence: job.Fence, Confirm: job.Confirm,
	})
	if err != nil {
		return err
	}
	names := make([]string, len(views))
	for i, one := range views {
		names[i] = one.View
	}
	published, err := h.Volume.Subtrees(synced.Repo, synced.Path, synced.App, names)
	if err != nil {
		return err
	}
	for i, name := range names {
		views[i].Path, views[i].Tree = volume.SubtreePath(synced.Path, synced.App, name), published[name]
	}
	return nil
}
