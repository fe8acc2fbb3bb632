package state

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"lockstep/events"
)

// The state of a repository's views is in a separate hash, because there may be 10,000 of them:
//
//	{ref}:{app}          "{commit} {digest}": where app's views of ref were last compared, and the digest of their paths
//	{ref}:{app}:{view}   subtree of the view when it last changed, which is the last that the app received

// ViewsField returns the field of all views of an app and ref.
func ViewsField(app string, ref events.Ref) string { return ref.String() + ":" + app }

// ViewField returns the field of a view.
func ViewField(app string, ref events.Ref, view string) string {
	return ViewsField(app, ref) + ":" + view
}

// ParseViewsField returns the app and ref of a field of all views.
func ParseViewsField(field string) (app string, ref events.Ref, err error) {
	name, app, _ := strings.Cut(field, ":")
	ref, err = events.ParseRef(name)
	return app, ref, err
}

// ViewsFields returns the fields of all views, of the apps and refs with a delivered commit: others have none.
func (r Repo) ViewsFields() (fields []string) {
	for name := range r.fields {
		if field, ok := strings.CutPrefix(name, givenPrefix); ok && !strings.HasSuffix(field, ":") {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return fields
}

// DropsViews reports whether removing fields of a repository's state forgets what was delivered to the app
// and ref of a field of all views.
func DropsViews(drop []string, field string) bool { return slices.Contains(drop, givenPrefix+field) }

// Views returns the named fields of the state of a repository's views that exist.
func (s *Store) Views(ctx context.Context, repo events.RepoPath, names ...string) (map[string]string, error) {
	values, err := s.redis.HMGet(ctx, s.namespace.Views(repo), names...).Result()
	if err != nil {
		return nil, fmt.Errorf("load the views of %s: %w", repo, err)
	}
	fields := map[string]string{}
	for i, value := range values {
		if text, ok := value.(string); ok {
			fields[names[i]] = text
		}
	}
	return fields, nil
}

// ViewsBelow returns the fields of the state of a repository's views that begin with prefix. The caller holds
// the repository's lease, so that none changes meanwhile.
func (s *Store) ViewsBelow(ctx context.Context, repo events.RepoPath, prefix string) (map[string]string, error) {
	fields, err := s.scan(ctx, s.namespace.Views(repo), prefix+"*") // a ref has no * ? [ \
	if err != nil {
		return nil, fmt.Errorf("load the views of %s: %w", repo, err)
	}
	return fields, nil
}
