package volume

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"lockstep/events"
	"lockstep/internal/git/object"
)

// prove checks that the new remote is the repository at From, by comparing it with each former one.
func (m *mover) prove(ctx context.Context) error {
	isFormer := func(r Remote) bool { return r.URL == m.old.Remote }
	if m.here && !slices.ContainsFunc(m.req.Former, isFormer) {
		return events.Errorf(events.Permanent, events.ClassInternal, "the remote of %s is not a former one", m.req.From)
	}
	for _, former := range m.req.Former {
		if was, is := events.CanonicalHost(former.URL), events.CanonicalHost(m.req.URL); was != is {
			return conflict("%s and %s are different hosts; remove the repository and sync it from the new host", was, is)
		}
	}
	if len(m.req.Former) == 0 {
		return nil // nothing to move, or only what a repeated request has left
	}
	now, err := m.listRemote(ctx, m.req.Remote)
	if err != nil { // then the absence of the former ones proves nothing
		return err
	}
	refusals, proved := map[string]error{}, map[string]bool{} // by former remote
	for _, former := range m.req.Former {
		listed, err := m.compare(ctx, former, now)
		switch remote := events.CanonicalRemote(former.URL); {
		case err == nil:
			proved[remote] = proved[remote] || listed
		case !listed && events.DispositionOf(err) == events.Permanent:
			refusals[remote] = err
		default:
			return err
		}
	}
	for remote, err := range refusals { // a credential that is refused vetoes nothing that another one has seen
		if !proved[remote] {
			return err
		}
	}
	return nil
}

// compare checks that a former remote is the same repository as the new one. It is if the former remote is gone or has
// the same refs, because forges redirect old names. It also is if only the new remote lists a commit that is
// published at From: then another repository has taken the old name. If both list such a commit, one is a
// fork of the other and neither has moved. Another host is refused: permission for one does not imply permission for
// the other. What was cloned at From after it has moved before may be of another repository, which is gone.
// listed reports whether the former remote has shown its refs.
func (m *mover) compare(ctx context.Context, former Remote, now listing) (listed bool, err error) {
	was, err := m.listRemote(ctx, former)
	isGone := events.ClassOf(err) == events.ClassNotFound
	isRepeated := m.here && m.hasMoved
	switch isHidden := events.DispositionOf(err) == events.Permanent; {
	case isGone && !former.Unseen && !isRepeated, isHidden && now.hasPublished:
		return false, nil
	case isGone && isRepeated:
		return false, conflict("%s has no commit of what was cloned from %s after the move, which is gone",
			events.CanonicalRemote(m.req.URL), events.CanonicalRemote(former.URL))
	case isHidden: // the credential need not be that of the change
		return false, events.WithScope(fmt.Errorf("compare with the old remote: %w", err), events.ScopeChange)
	case err != nil:
		return false, fmt.Errorf("compare with the old remote: %w", err)
	case now.hasPublished && !was.hasPublished, now.hasPublished && was.equals(now):
		return true, nil
	}
	again, err := m.listRemote(ctx, m.req.Remote) // a push may have arrived in between
	switch {
	case err != nil:
		return true, err
	case was.equals(again) && (len(was.refs) > 0 || len(m.published.Commits) == 0):
		return true, nil
	case !again.equals(now):
		return true, events.Errorf(events.Retryable, events.ClassConflict,
			"%s changed while it was compared with %s; try again when nobody pushes",
			events.CanonicalRemote(m.req.URL), events.CanonicalRemote(former.URL))
	}
	return true, conflict("%s is not the same repository as %s, which still exists",
		events.CanonicalRemote(m.req.URL), events.CanonicalRemote(former.URL))
}

// listing is the refs of one of the two remotes.
type listing struct {
	refs         map[string]string // branches and tags
	hasPublished bool              // whether a ref is at a commit that is published at From
}

func (l listing) equals(other listing) bool { return maps.Equal(l.refs, other.refs) }

func (m *mover) listRemote(ctx context.Context, at Remote) (listing, error) {
	r, err := m.v.net.DialAndList(ctx, at.URL, at.Auth, at.Foreign, m.v.cfg.wireLimits(at.Limiter))
	if err != nil {
		return listing{}, err
	}
	defer r.Close()
	l := listing{refs: r.BranchesAndTags().Commits}
	published := map[object.ID]bool{}
	for _, commit := range m.published.Commits {
		published[object.ParseID(commit)] = true
	}
	l.hasPublished = r.ListsAny(published)
	return l, nil
}
