package backend

import (
	"context"
	"fmt"
	"maps"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/state"
	"lockstep/internal/view"
	"lockstep/internal/volume"
)

// views implements [handlers.Views].
type views struct {
	volume *volume.Volume
	states *state.Store
}

// Compare returns the views that have changed.
func (v views) Compare(ctx context.Context, req handlers.ViewsRequest) ([]handlers.ChangedView, error) {
	set, err := setOf(req.Views)
	if err != nil {
		return nil, fmt.Errorf("compare the views of %s: %w", req.Repo, err)
	}
	found, err := v.volume.Views(ctx, volume.ViewsRequest{
		Repo: req.Repo, Commit: req.Commit, Tree: req.Tree, Views: set, Base: req.Base, All: req.All, Whole: req.Whole, Subtrees: req.Subtrees,
	})
	if err != nil {
		return nil, err
	}
	changed := make([]handlers.ChangedView, len(found))
	for i, one := range found {
		changed[i] = handlers.ChangedView{Name: one.Name, Subtree: one.Subtree, Files: one.Files, Full: one.Full, Truncated: one.Truncated}
	}
	return changed, listMissing(set, changed, req.Missing)
}

const maxViewsMissing = 20 * maxMissing // submodules that all views of a commit list together

// listMissing fills in the missing submodules of each view.
func listMissing(set *view.Set, changed []handlers.ChangedView, missing []events.MissingSubmodule) error {
	if len(missing) == 0 {
		return nil
	}
	paths := make([]string, len(missing))
	for i, m := range missing {
		paths[i] = m.Name()
	}
	matches, err := set.Match(paths)
	if err != nil {
		return err
	}
	left := maxViewsMissing
	for i := range changed {
		indexes, _ := matches.Paths(changed[i].Name, left)
		left -= len(indexes)
		for _, at := range indexes {
			changed[i].Missing = append(changed[i].Missing, missing[at])
		}
	}
	return nil
}

// setOf returns views as a set.
func setOf(views handlers.ViewSet) (*view.Set, error) {
	if set, ok := views.(*view.Set); ok {
		return set, nil
	}
	return view.New(maps.Collect(views.All()))
}

// Publish publishes views.
func (v views) Publish(ctx context.Context, req handlers.ViewTreesRequest) (map[string]handlers.ViewTree, error) {
	set, err := setOf(req.Views)
	if err != nil {
		return nil, fmt.Errorf("publish the views of %s: %w", req.Repo, err)
	}
	err = v.volume.PublishViews(ctx, volume.ViewTreesRequest{
		Repo: req.Repo, App: req.App, Path: req.Path, Tree: req.Tree, Views: set, Fence: req.Fence, Confirm: req.Confirm,
	})
	if err != nil {
		return nil, err
	}
	trees, err := v.volume.ViewTrees(req.Repo, req.Path, req.App, req.Changed)
	published := make(map[string]handlers.ViewTree, len(trees))
	for name, tree := range trees {
		published[name] = handlers.ViewTree{Path: volume.ViewPath(req.Path, req.App, name), Tree: tree}
	}
	return published, err
}

// Damaged returns the views whose trees are damaged.
func (v views) Damaged(repo events.RepoPath, app, path string) ([]string, error) {
	return v.volume.DamagedViews(repo, app, path)
}

// Published reports whether views are published.
func (v views) Published(repo events.RepoPath, app string, ref events.Ref, isDefault bool, of handlers.ViewSet) (bool, error) {
	set, err := setOf(of)
	if err != nil {
		return false, fmt.Errorf("look for the views of %s: %w", repo, err)
	}
	return v.volume.ViewsPublished(repo, app, ref, isDefault, set)
}

// Unpublish removes views.
func (v views) Unpublish(ctx context.Context, repo events.RepoPath, fence uint64, wanted func(app string, ref events.Ref, isDefault bool) bool) error {
	return v.volume.UnpublishViews(ctx, repo, fence, wanted)
}

// State returns named fields of the state of a repository's views.
func (v views) State(ctx context.Context, repo events.RepoPath, names ...string) (map[string]string, error) {
	return v.states.Views(ctx, repo, names...)
}

// StateBelow returns the fields of the state of a repository's views that begin with prefix.
func (v views) StateBelow(ctx context.Context, repo events.RepoPath, prefix string) (map[string]string, error) {
	return v.states.ViewsBelow(ctx, repo, prefix)
}
