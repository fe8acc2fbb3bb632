package volume

import (
	"context"
	"fmt"
	"maps"

	"lockstep/internal/git/object"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
)

// sameHost refuses a move to another host: permission for one host does not imply permission for the other.
func sameHost(old, now string) error {
	oldHost, newHost := events.CanonicalHost(old), events.CanonicalHost(now)
	if oldHost == newHost {
		return nil
	}
	return conflict("%s and %s are different hosts; remove the repository and sync it from the new host", oldHost, newHost)
}

// checkSameRepo checks that the new remote is the repository at From. It is if the old remote is gone or has
// the same refs, because forges redirect old names. It also is if only the new remote lists a commit that is
// published at From: then another repository has taken the old name. If both list such a commit, one is a
// fork of the other and neither has moved.
func (m *mover) checkSameRepo(ctx context.Context) error {
	now, err := m.listRemote(ctx, m.req.URL, m.req.Auth)
	if err != nil {
		return err
	}
	was, err := m.listRemote(ctx, m.old.Remote, m.req.OldAuth)
	switch hidden := events.DispositionOf(err) == events.Permanent; {
	case events.ClassOf(err) == events.ClassNotFound, hidden && now.hasPublished:
		return nil
	case err != nil:
		return fmt.Errorf("compare with the old remote: %w", err)
	case now.hasPublished && !was.hasPublished, now.hasPublished && was.equals(now):
		return nil
	}
	again, err := m.listRemote(ctx, m.req.URL, m.req.Auth) // a push may have arrived in between
	switch {
	case err != nil:
		return err
	case was.equals(again) && (len(was.refs) > 0 || len(m.published()) == 0):
		return nil
	case !again.equals(now):
		return events.Errorf(events.Retryable, events.ClassConflict,
			"%s changed while it was compared with %s; try again when nobody pushes",
			events.CanonicalRemote(m.req.URL), events.CanonicalRemote(m.old.Remote))
	}
	return conflict("%s is not the same repository as %s, which still exists",
		events.CanonicalRemote(m.req.URL), events.CanonicalRemote(m.old.Remote))
}

// listing is the refs of one of the two remotes.
type listing struct {
	refs         map[string]string // branches and tags
	hasPublished bool              // whether a ref is at a commit that is published at From
}

func (l listing) equals(other listing) bool { return maps.Equal(l.refs, other.refs) }

func (m *mover) listRemote(ctx context.Context, url string, auth wire.Auth) (listing, error) {
	r, err := m.v.net.DialAndList(ctx, url, auth, m.req.Foreign, m.v.cfg.wireLimits(m.req.Limiter))
	if err != nil {
		return listing{}, err
	}
	defer r.Close()
	l := listing{refs: r.BranchesAndTags().Commits}
	l.hasPublished = r.ListsAny(m.published())
	return l, nil
}

// published returns the commits that are published at From.
func (m *mover) published() map[object.ID]bool {
	commits := map[object.ID]bool{}
	for _, tree := range m.links {
		if _, commit, ok := checkout.RefAndCommit(m.from.tree(tree)); ok {
			commits[object.ParseID(commit)] = true
		}
	}
	return commits
}
