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

// sameHost refuses a move to another host: whoever may speak for the one may not for the other.
func sameHost(old, now string) error {
	was, is := events.CanonicalHost(old), events.CanonicalHost(now)
	if was == is {
		return nil
	}
	return conflict("%s and %s are different hosts; a repository that changes hosts is to be removed and synced anew", was, is)
}

// prove makes sure that the new remote is the repository at From. It is if the old one is gone, or has the same
// branches and tags: forges answer for old names. So it is if it has a commit that is published at From, and the
// old one has none: somebody has made another repository by the old name. If both have one, neither has moved. One
// is a fork of the other, as when a move is told of again, long after, and a fork lives at the old name.
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
		return fmt.Errorf("ask the old remote whether it is the same repository: %w", err)
	case now.hasPublished && !was.hasPublished, now.hasPublished && was.equals(now):
		return nil
	}
	again, err := m.listRemote(ctx, m.req.URL, m.req.Auth) // there may have been a push between the two
	switch {
	case err != nil:
		return err
	case was.equals(again) && (len(was.refs) > 0 || len(m.published()) == 0):
		return nil
	case !again.equals(now):
		return events.Errorf(events.Retryable, events.ClassConflict, "%s is being pushed to, and cannot be compared with %s meanwhile",
			events.CanonicalRemote(m.req.URL), events.CanonicalRemote(m.old.Remote))
	}
	return conflict("%s is not the same repository as %s, which is still there",
		events.CanonicalRemote(m.req.URL), events.CanonicalRemote(m.old.Remote))
}

// listing is what one of the two remotes lists.
type listing struct {
	refs         map[string]string // branches and tags
	hasPublished bool              // some ref is at a commit that is published at From
}

func (l listing) equals(other listing) bool { return maps.Equal(l.refs, other.refs) }

func (m *mover) listRemote(ctx context.Context, url string, auth wire.Auth) (listing, error) {
	r, err := m.v.net.DialAndList(ctx, url, auth, m.req.Foreign, m.v.cfg.wireLimits())
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
