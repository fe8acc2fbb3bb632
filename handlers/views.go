package handlers

import (
	"context"
	"strings"

	"lockstep/events"
	"lockstep/internal/ext/views"
	"lockstep/internal/state"
	"lockstep/internal/view"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// viewsOf returns the views of an app's most specific watch of a ref, or nil, and whether it asks for trees of them.
func viewsOf(watches []watch.Watch, app string, ref events.Ref, isDefault bool) (best *view.Set, trees bool) {
	last := 0
	for _, w := range watches {
		rank := 0
		switch {
		case w.App != app:
		case w.Ref.IsDefault() && isDefault:
			rank = 2
		case w.Ref.Matches(ref) && !w.Ref.IsPattern():
			rank = 3
		case w.Ref.Matches(ref):
			rank = 1
		}
		if rank > last {
			best, trees, last = views.Of(w).Views, views.Of(w).Trees, rank
		}
	}
	if best == nil || best.Len() == 0 {
		return nil, false
	}
	return best, trees
}

// viewComparison compares the views that an app has of a ref. A view's own result follows that of the sync in
// the same step. What the app has received of each view is stored in that step too, so repeating a comparison
// after a crash gives the same result.
type viewComparison struct {
	states *state.Store
	set    *view.Set
	synced events.Result
	given  string            // commit that the app has received for certain; "" for none
	base   string            // commit at which the same views were last compared; "" if there is none
	stored map[string]string // subtrees of the views, if they were loaded
	fields map[string]string // to store
}

// compareViews compares the views that the app of a synced result has of its ref, if any. It adds their
// counts to the result, and returns the results of those that have changed, and the fields to store. doubtful
// says that the app may have other files.
func (h *Handlers) compareViews(
	ctx context.Context, watches []watch.Watch, known state.Repo, synced *events.Result, doubtful bool,
) (results []events.Result, fields map[string]string, err error) {
	if synced.App == "" {
		return nil, nil, nil
	}
	set, trees := viewsOf(watches, synced.App, synced.Ref, synced.IsDefault())
	if set == nil {
		return nil, nil, nil
	}
	field := state.ViewsField(synced.App, synced.Ref)
	last, err := h.States.Views(ctx, synced.Repo, field)
	if err != nil {
		return nil, nil, redisError(err)
	}
	compared := comparedAt(synced.After, set)
	given, _, _ := known.Received(synced.App, synced.Ref, "", "", "")
	c := &viewComparison{
		states: h.States, set: set, synced: *synced, given: given,
		fields: map[string]string{field: compared},
	}
	synced.Views = &events.ViewCounts{Unchanged: set.Len()}
	var whole []string
	if trees {
		if whole, err = h.Volume.DamagedSubtrees(synced.Repo, synced.Path, synced.App, set); err != nil {
			return nil, nil, err
		}
	}
	if c.given != "" {
		if last[field] == compared && !doubtful && len(whole) == 0 {
			return nil, nil, nil
		}
		if commit, digest, _ := strings.Cut(last[field], " "); digest == set.Digest() {
			c.base = commit
		}
	}
	changed, err := h.Volume.Views(ctx, volume.ViewsRequest{
		Repo: synced.Repo, Commit: synced.After, Tree: synced.Tree, Views: set, Base: c.base,
		All: doubtful, Whole: whole, Subtrees: c.subtrees,
	})
	if err != nil {
		return nil, nil, err
	}
	var missing []string
	for _, m := range synced.Missing {
		missing = append(missing, m.Name())
	}
	matches, err := set.Match(missing)
	if err != nil {
		return nil, nil, err
	}
	synced.Views.Changed, synced.Views.Unchanged = len(changed), set.Len()-len(changed)
	left := maxViewsMissing
	for _, one := range changed {
		c.fields[state.ViewField(synced.App, synced.Ref, one.Name)] = one.Subtree
		result := c.result(one)
		indexes, _ := matches.Paths(one.Name, left)
		left -= len(indexes)
		for _, at := range indexes {
			result.Missing = append(result.Missing, synced.Missing[at])
		}
		results = append(results, result)
	}
	return results, c.fields, nil
}

const maxViewsMissing = 2000 // that the results of all views of a commit list together

// noneChanged counts the same views as all unchanged.
func noneChanged(c *events.ViewCounts) *events.ViewCounts {
	if c == nil {
		return nil
	}
	return &events.ViewCounts{Unchanged: c.Changed + c.Unchanged}
}

// comparedAt returns the value to store for views that were compared at a commit.
func comparedAt(commit string, set *view.Set) string { return commit + " " + set.Digest() }

// subtrees returns the subtrees of the views that the app has received, and marks those of other views to be forgotten.
func (c *viewComparison) subtrees(ctx context.Context) (map[string]string, error) {
	prefix := state.ViewField(c.synced.App, c.synced.Ref, "")
	all, err := c.states.ViewsBelow(ctx, c.synced.Repo, prefix)
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
func (c *viewComparison) result(view volume.ChangedView) events.Result {
	r := c.synced
	r.ID += "/" + view.Name
	r.Type, r.View, r.Subtree = events.ResultView, view.Name, view.Subtree
	r.Files, r.Truncated, r.Missing = view.Files, view.Truncated, nil
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
func (h *Handlers) comparedViews(
	ctx context.Context, repo events.RepoPath, known state.Repo,
) (map[string]string, error) {
	fields := known.ViewsFields()
	if len(fields) == 0 {
		return nil, nil
	}
	compared, err := h.States.Views(ctx, repo, fields...)
	return compared, redisError(err)
}

// viewsAreDue reports whether a sync of ref at its published commit would compare the views of a
// watch's app again, or publish their trees. compared is from comparedViews.
func (h *Handlers) viewsAreDue(
	compared map[string]string, watches []watch.Watch, w watch.Watch, ref events.Ref, isDefault bool, commit string,
) (bool, error) {
	set, trees := viewsOf(watches, w.App, ref, isDefault)
	switch {
	case set == nil:
		return false, nil
	case compared[state.ViewsField(w.App, ref)] != comparedAt(commit, set):
		return true, nil
	case !trees:
		return false, nil
	}
	published, err := h.Volume.SubtreesPublished(w.Repo, w.App, ref, isDefault, set)
	return !published, err
}

// forgottenViews returns the fields that forget what apps have received of views. gone reports whether to
// forget those of an app and ref, given the field of all of them.
func (h *Handlers) forgottenViews(
	ctx context.Context, repo events.RepoPath, compared map[string]string, gone func(field string) bool,
) (map[string]string, error) {
	forgotten := map[string]string{}
	for field := range compared {
		if !gone(field) {
			continue
		}
		of, err := h.States.ViewsBelow(ctx, repo, field+":")
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
func (h *Handlers) droppedViews(
	ctx context.Context, repo events.RepoPath, known state.Repo, drop []string,
) (map[string]string, error) {
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
	moved, err := h.States.ViewsBelow(ctx, from, "")
	if err != nil || len(moved) == 0 {
		return nil, redisError(err)
	}
	there, err := h.States.ViewsBelow(ctx, to, "")
	for field := range there {
		delete(moved, field)
	}
	return moved, redisError(err)
}
