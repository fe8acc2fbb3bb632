package handlers

import (
	"context"
	"iter"
	"strings"

	"lockstep/events"
	"lockstep/internal/state"
)

// Views compares the views of watches, and reads what is stored of them.
type Views interface {
	// Compare returns the views that have changed, sorted by name.
	Compare(ctx context.Context, req ViewsRequest) ([]ChangedView, error)
	// State returns the named fields of the state of a repository's views that earlier outcomes have set.
	State(ctx context.Context, repo events.RepoPath, names ...string) (map[string]string, error)
	// StateBelow returns the fields whose names begin with prefix.
	StateBelow(ctx context.Context, repo events.RepoPath, prefix string) (map[string]string, error)

	// Publish links each view of an app to a tree with only its files, and returns those of the changed views by name.
	Publish(ctx context.Context, req ViewTreesRequest) (map[string]ViewTree, error)
	// Damaged returns the views of a published name whose trees Publish will replace because they are damaged.
	Damaged(repo events.RepoPath, app, path string) ([]string, error)
	// Published reports whether Publish has nothing to do for what is published for a ref. isDefault says that it has the plain name.
	Published(repo events.RepoPath, app string, ref events.Ref, isDefault bool, views ViewSet) (bool, error)
	// Unpublish removes the names of the views of apps and refs that are not wanted.
	Unpublish(ctx context.Context, repo events.RepoPath, fence uint64, wanted func(app string, ref events.Ref, isDefault bool) bool) error
}

// ViewSet is the views of a watch: named parts of a tree.
type ViewSet interface {
	Len() int
	Digest() string                   // equal for sets with the same names and paths
	All() iter.Seq2[string, []string] // names, sorted, and paths
}

// ViewsRequest is a request to [Views].
type ViewsRequest struct {
	Repo   events.RepoPath
	Commit string   // a published commit
	Tree   string   // its tree, relative to the root
	Views  ViewSet  // not empty
	Base   string   // commit at which the same views were last compared; "" if there is none
	All    bool     // count every view as changed, to list it whole
	Whole  []string // views to count as changed, to list them whole

	Missing []events.MissingSubmodule // submodules that the tree lacks

	// Subtrees returns the subtree that each view had when it last changed, by name. It is called only if Base is "" or no longer
	// available, or All or Whole is set.
	Subtrees func(context.Context) (map[string]string, error)
}

// ChangedView is a view that has changed.
type ChangedView struct {
	Name      string
	Subtree   string        // ID of the tree object with only the view's files
	Files     []events.File // changed since Base
	Full      bool          // Files lists the whole view, whatever has changed
	Truncated bool          // there are more files than Files lists

	Missing []events.MissingSubmodule // those in the view, perhaps not all
}

// viewsOf returns the views of an app's most specific watch of a ref, or nil, and whether it asks for trees of them.
func viewsOf(watches []Watch, app string, ref events.Ref, isDefault bool) (best ViewSet, trees bool) {
	last := 0
	for _, w := range watches {
		rank := 0
		_, isOne := w.Ref.Ref()
		switch {
		case w.App != app:
		case w.Ref.IsDefault() && isDefault:
			rank = 2
		case w.Ref.Matches(ref) && isOne:
			rank = 3
		case w.Ref.Matches(ref):
			rank = 1
		}
		if rank > last {
			best, trees, last = w.Views, w.ViewTrees, rank
		}
	}
	if best == nil || best.Len() == 0 {
		return nil, false
	}
	return best, trees
}

// viewComparison compares the views that an app has of a ref. A view's own result follows that of the sync in the same step. What
// the app has received of each view is stored in that step too, so repeating a comparison after a crash gives the same result.
type viewComparison struct {
	views  Views
	set    ViewSet
	synced events.Result
	given  string            // commit that the app has received for certain; "" for none
	base   string            // commit at which the same views were last compared; "" if there is none
	stored map[string]string // subtrees of the views, if they were loaded
	fields map[string]string // to store
}

// compareViews compares the views that the app of a synced result has of its ref, if any. It adds their counts to the result, and
// returns the results of those that have changed, and the fields to store. damaged says that the app may have read wrong files.
func (h *Handlers) compareViews(
	ctx context.Context, watches []Watch, known state.Repo, synced *events.Result, damaged bool,
) (results []events.Result, fields map[string]string, err error) {
	if h.Views == nil || synced.App == "" {
		return nil, nil, nil
	}
	set, trees := viewsOf(watches, synced.App, synced.Ref, synced.IsDefault())
	if set == nil {
		return nil, nil, nil
	}
	field := state.ViewsField(synced.App, synced.Ref)
	last, err := h.Views.State(ctx, synced.Repo, field)
	if err != nil {
		return nil, nil, redisError(err)
	}
	compared := comparedAt(synced.After, set)
	c := &viewComparison{views: h.Views, set: set, synced: *synced, given: known.Received(synced.App, synced.Ref), fields: map[string]string{field: compared}}
	synced.Views = &events.ViewCounts{Unchanged: set.Len()}
	var whole []string
	if trees {
		if whole, err = h.Views.Damaged(synced.Repo, synced.App, synced.Path); err != nil {
			return nil, nil, err
		}
	}
	if c.given != "" {
		if last[field] == compared && !damaged && len(whole) == 0 {
			return nil, nil, nil
		}
		if commit, digest, _ := strings.Cut(last[field], " "); digest == set.Digest() {
			c.base = commit
		}
	}
	changed, err := h.Views.Compare(ctx, ViewsRequest{
		Repo: synced.Repo, Commit: synced.After, Tree: synced.Tree, Views: set, Base: c.base, All: damaged, Whole: whole, Missing: synced.Missing,
		Subtrees: c.subtrees,
	})
	if err != nil {
		return nil, nil, err
	}
	synced.Views.Changed, synced.Views.Unchanged = len(changed), set.Len()-len(changed)
	for _, view := range changed {
		c.fields[state.ViewField(synced.App, synced.Ref, view.Name)] = view.Subtree
		results = append(results, c.result(view))
	}
	return results, c.fields, nil
}

// noneChanged counts the same views as all unchanged.
func noneChanged(c *events.ViewCounts) *events.ViewCounts {
	if c == nil {
		return nil
	}
	return &events.ViewCounts{Unchanged: c.Changed + c.Unchanged}
}

// comparedAt returns the value to store for views that were compared at a commit.
func comparedAt(commit string, set ViewSet) string { return commit + " " + set.Digest() }

// subtrees returns the subtrees of the views that the app has received, and marks those of other views to be forgotten.
func (c *viewComparison) subtrees(ctx context.Context) (map[string]string, error) {
	prefix := state.ViewField(c.synced.App, c.synced.Ref, "")
	all, err := c.views.StateBelow(ctx, c.synced.Repo, prefix)
	if err != nil {
		return nil, redisError(err)
	}
	c.stored = map[string]string{}
	for name := range c.set.All() {
		if subtree, ok := all[prefix+name]; ok && c.given != "" {
			c.stored[name] = subtree
		}
		delete(all, prefix+name)
	}
	for field := range all {
		c.fields[field] = ""
	}
	return c.stored, nil
}

// result returns the result of a view that has changed.
func (c *viewComparison) result(view ChangedView) events.Result {
	r := c.synced
	r.ID += "/" + view.Name
	r.Type, r.View, r.Subtree = events.ResultView, view.Name, view.Subtree
	r.Files, r.Truncated, r.Missing = view.Files, view.Truncated, view.Missing
	r.Deliveries, r.Views = nil, nil // only the result of the sync answers a change
	switch r.Full = false; {
	case !view.Full:
		r.Before = c.base
	case c.stored[view.Name] == "":
		r.Before = ""
	default:
		r.Before, r.Full = c.given, true
	}
	r.Forced = r.Forced && r.Before == c.synced.Before
	return r
}

// comparedViews returns where the views of apps were last compared, by field.
func (h *Handlers) comparedViews(ctx context.Context, repo events.RepoPath, known state.Repo) (map[string]string, error) {
	fields := known.ViewsFields()
	if h.Views == nil || len(fields) == 0 {
		return nil, nil
	}
	compared, err := h.Views.State(ctx, repo, fields...)
	return compared, redisError(err)
}

// viewsAreDue reports whether a sync of ref at its published commit would compare the views of a
// watch's app again, or publish their trees. compared is from comparedViews.
func (h *Handlers) viewsAreDue(compared map[string]string, watches []Watch, w Watch, ref events.Ref, isDefault bool, commit string) (bool, error) {
	if h.Views == nil {
		return false, nil
	}
	set, trees := viewsOf(watches, w.App, ref, isDefault)
	switch {
	case set == nil:
		return false, nil
	case compared[state.ViewsField(w.App, ref)] != comparedAt(commit, set):
		return true, nil
	case !trees:
		return false, nil
	}
	published, err := h.Views.Published(w.Repo, w.App, ref, isDefault, set)
	return !published, err
}

// forgottenViews returns the fields that forget what apps have received of views. gone reports whether to forget those of an app and
// ref, given the field of all of them.
func (h *Handlers) forgottenViews(
	ctx context.Context, repo events.RepoPath, compared map[string]string, gone func(field string) bool,
) (map[string]string, error) {
	forgotten := map[string]string{}
	for field := range compared {
		if !gone(field) {
			continue
		}
		of, err := h.Views.StateBelow(ctx, repo, field+":")
		if err != nil {
			return nil, redisError(err)
		}
		forgotten[field] = ""
		for name := range of {
			forgotten[name] = ""
		}
	}
	return forgotten, nil
}

// droppedViews returns the fields that forget the views of the apps and refs whose state is dropped.
func (h *Handlers) droppedViews(ctx context.Context, repo events.RepoPath, known state.Repo, drop []string) (map[string]string, error) {
	if len(drop) == 0 {
		return map[string]string{}, nil
	}
	compared, err := h.comparedViews(ctx, repo, known)
	if err != nil {
		return nil, err
	}
	return h.forgottenViews(ctx, repo, compared, func(field string) bool { return state.DropsViews(drop, field) })
}

// movedViews returns what apps have received of the views of a repository, except what is known at its new path.
func (h *Handlers) movedViews(ctx context.Context, from, to events.RepoPath) (map[string]string, error) {
	if h.Views == nil {
		return nil, nil
	}
	moved, err := h.Views.StateBelow(ctx, from, "")
	if err != nil || len(moved) == 0 {
		return nil, redisError(err)
	}
	there, err := h.Views.StateBelow(ctx, to, "")
	for field := range there {
		delete(moved, field)
	}
	return moved, redisError(err)
}
