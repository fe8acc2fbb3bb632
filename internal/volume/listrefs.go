package volume

import (
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/git/wire"
)

// ListRefsRequest is a request for the refs of a remote.
type ListRefsRequest struct {
	Repo events.RepoPath
	URL  string    // the remote, as in [SyncRequest]
	Auth wire.Auth // used only for this operation; zero is anonymous

	Foreign bool // as in [SyncRequest]

	Limiter wire.Limiter // as in [SyncRequest]
}

// ListRefs lists the refs of a remote, like git ls-remote. It fetches and writes nothing and needs no lease.
// A repository without commits has zero Refs. The errors are those of [Volume.Sync], including a conflict if
// the path is bound to another remote.
func (v *Volume) ListRefs(ctx context.Context, req ListRefsRequest) (Refs, error) {
	if req.Repo.IsZero() {
		return Refs{}, events.Errorf(events.Permanent, events.ClassInternal, "volume: request without a repository")
	}
	refs, err := v.listRefs(ctx, req)
	if err != nil {
		return Refs{}, fmt.Errorf("list refs of %s: %w", req.Repo, err)
	}
	return refs, nil
}

func (v *Volume) listRefs(ctx context.Context, req ListRefsRequest) (Refs, error) {
	if err := checkURL(req.URL); err != nil {
		return Refs{}, err
	}
	if _, _, err := v.checkBound(v.folder(req.Repo), req.URL); err != nil {
		return Refs{}, err
	}
	r, err := v.net.DialAndList(ctx, req.URL, req.Auth, req.Foreign, v.cfg.wireLimits(req.Limiter), "refs/heads/",
		"refs/tags/")
	if err != nil {
		return Refs{}, err
	}
	defer r.Close()
	return refsOf(r.BranchesAndTags())
}
