package watch

import (
	"context"
	"errors"
	"fmt"

	"lockstep/events"
)

// Errors of [Registry.Create] and [Registry.Change].
var (
	// ErrExists: the app has this watch already, with other options.
	ErrExists = errors.New("watch: exists with other options")
	// ErrNotWatched: the app has no such watch.
	ErrNotWatched = errors.New("watch: no such watch")
)

// Create adds a watch, or returns [ErrExists] with the existing one if that has other options. It changes an
// existing one only in that it is no longer silenced, nor automatic. changed is false if there was nothing to
// do.
func (r *Registry) Create(ctx context.Context, w Watch) (existing Watch, added, changed bool, err error) {
	if w, err = New(w); err != nil {
		return Watch{}, false, false, events.Errorf(events.Malformed, events.ClassConfig, "watch: %w", err)
	}
	err = r.editOne(ctx, w.Key(), func(was *Watch) (Watch, error) {
		added, changed, existing = was == nil, was == nil, Watch{}
		if was == nil {
			return w, nil
		}
		existing = *was
		same, err := sameButFor(*was, w)
		switch {
		case err != nil:
			return Watch{}, err
		case !same:
			return Watch{}, ErrExists
		}
		changed = was.Silenced != "" || was.Auto
		kept := *was // as it is spelled
		kept.Silenced, kept.Auto = "", false
		return kept, nil
	})
	return existing, added, changed, err
}

// sameButFor reports whether two watches are the same, but for what the registry itself notes about one.
func sameButFor(a, b Watch) (bool, error) {
	a.Silenced, b.Silenced, a.Auto, b.Auto = "", "", false, false
	if a.Repo.Equal(b.Repo) { // spelled in another way
		a.Repo = b.Repo
	}
	one, err := a.document()
	if err != nil {
		return false, err
	}
	other, err := b.document()
	return one == other, err
}

// Change replaces a watch by what change makes of it, in one step, and queues a poll if it differs. change
// may be called several times, and must not change the watch's key. Change returns [ErrNotWatched] if there
// is no such watch.
func (r *Registry) Change(ctx context.Context, key Key, change func(*Watch) error) (before, after Watch, err error) {
	err = r.editOne(ctx, key, func(was *Watch) (Watch, error) {
		if was == nil {
			return Watch{}, ErrNotWatched
		}
		before, after = *was, *was
		if err := change(&after); err != nil {
			return Watch{}, err
		}
		if after, err = New(after); err != nil {
			return Watch{}, events.Errorf(events.Malformed, events.ClassConfig, "watch: %w", err)
		}
		return after, nil
	})
	return before, after, err
}

// editOne replaces a watch of a key; was is nil if there is none.
func (r *Registry) editOne(ctx context.Context, key Key, change func(was *Watch) (Watch, error)) error {
	return r.edit(ctx, key.Repo, true, func(docs map[string]string) error {
		field := key.field()
		var was *Watch
		if stored, ok := docs[field]; ok {
			w, err := parse([]byte(stored))
			if err != nil {
				return fmt.Errorf("the watch %s of %s: %w", field, key.Repo, err)
			}
			was = &w
		}
		w, err := change(was)
		if err != nil {
			return err
		}
		edits, err := editsOf([]Watch{w}, nil)
		if err != nil {
			return err
		}
		docs[field] = edits[0].put[w.Key().field()]
		return edits[0].check(docs)
	})
}
