// Package views announces changes of parts of a tree, and publishes these parts, for the watches that ask for it.
package views

import (
	"errors"
	"fmt"
	"strings"

	"lockstep/events"
	"lockstep/internal/view"
	"lockstep/internal/watch"
)

// Name is the name of the extension.
const Name = "views"

// Options are the views of a watch: parts of the tree. Each view that a sync changes has its own result, which is posted
// instead of that of the sync. A repository has at most [view.MaxViews].
type Options struct {
	Views *view.Set `json:"views,omitempty" yaml:"views,omitempty"`           // nil for none
	Trees bool      `json:"view_trees,omitempty" yaml:"view_trees,omitempty"` // publish each view as a separate tree
}

func init() {
	watch.Register(watch.Extension{Option: Options{}, Together: checkNumber, Flags: []watch.Flag{
		{Name: "view", Field: "views", Default: []string(nil), Parse: parse,
			Usage: "`name=path` of a part of the tree whose changes have results, such as api=services/api; repeatable, " +
				"also for one name"},
		{Name: "view-trees", Field: "view_trees", Default: false, Usage: "publish each view as a tree with only its files"},
	}})
}

// Of returns the options of a watch.
func Of(w watch.Watch) Options { return watch.OptionOf[Options](w) }

// Extension implements [watch.Option].
func (Options) Extension() string { return Name }

// Check implements [watch.Option].
func (o Options) Check(w watch.Watch) (watch.Option, error) {
	switch {
	case o.Views.Len() == 0 && o.Trees:
		return nil, errors.New("view_trees: only with views")
	case o.Views.Len() == 0:
		return nil, nil
	case len(w.Paths) > 0:
		return nil, errors.New("paths: leave them out, as only results of views are posted")
	}
	return o, nil
}

// parse parses views, each of whose paths is given as "name=path".
func parse(values any) (any, error) {
	views := map[string][]string{}
	for _, value := range values.([]string) {
		name, path, ok := strings.Cut(value, "=")
		if !ok {
			return nil, fmt.Errorf("view %.110q: want name=path, such as api=services/api", value)
		}
		views[name] = append(views[name], path)
	}
	return view.New(views)
}

// checkNumber returns an error if a repository would have too many views.
func checkNumber(repo events.RepoPath, watches []watch.Watch) error {
	n := 0
	for _, w := range watches {
		n += Of(w).Views.Len()
	}
	if n > view.MaxViews {
		return events.Errorf(events.Permanent, events.ClassConflict, "%s would have %d views, the limit is %d", repo, n,
			view.MaxViews)
	}
	return nil
}
