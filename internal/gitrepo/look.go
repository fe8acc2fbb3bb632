package gitrepo

import (
	"context"
	"fmt"
	"strings"

	"lockstep/events"
)

// LookRequest asks where a remote has its refs.
type LookRequest struct {
	Repo events.RepoPath
	URL  string // the remote, as in [SyncRequest]
	Auth Auth   // for this operation alone; zero is anonymous

	Foreign bool // as in [SyncRequest]
}

// Refs is what a remote lists. Only branches and tags are in it, and of those none whose name [events.ParseRef]
// refuses.
type Refs struct {
	Default events.Ref        // the default branch; zero when the remote does not say, or has no such branch
	Commits map[string]string // by full name. Of an annotated tag it is the commit; of servers that do not tell that, the tag itself
}

// Look asks a remote for its refs and fetches nothing. It takes no lease and writes nothing. A repository without a
// commit has zero Refs. The errors are those of [Volume.Sync], a conflict among them when the path is bound to
// another remote.
func (v *Volume) Look(ctx context.Context, req LookRequest) (Refs, error) {
	if req.Repo.IsZero() {
		return Refs{}, events.Errorf(events.Permanent, events.ClassInternal, "gitrepo: a request without a repository")
	}
	refs, err := v.look(ctx, req)
	if err != nil {
		return Refs{}, fmt.Errorf("look at %s: %w", req.Repo, err)
	}
	return refs, nil
}

func (v *Volume) look(ctx context.Context, req LookRequest) (Refs, error) {
	if err := checkRemote(req.URL); err != nil {
		return Refs{}, err
	}
	if err := v.checkBound(v.folder(req.Repo), req.URL); err != nil {
		return Refs{}, err
	}
	r, err := v.listed(ctx, req.URL, req.Auth, req.Foreign)
	if err != nil {
		return Refs{}, err
	}
	defer r.close()
	return r.branchesAndTags(), nil
}

func checkRemote(url string) error {
	if err := events.CheckRemote(url); err != nil {
		return events.Errorf(events.Permanent, events.ClassConfig, "remote: %w", err)
	}
	return nil
}

// checkBound refuses a remote other than the one bound, as [Volume.bind] does.
func (v *Volume) checkBound(f folder, remote string) error {
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return err
	}
	conflict := b.check(remote)
	if conflict == nil {
		return nil
	}
	used, err := v.isUsed(f, b)
	if err != nil {
		return err
	}
	if used {
		return conflict
	}
	return nil
}

// listed asks a remote for its refs, of which an empty one has none. The caller closes what is returned.
func (v *Volume) listed(ctx context.Context, url string, auth Auth, foreign bool) (*remote, error) {
	r, err := v.dial(url, auth, foreign)
	if err != nil {
		return nil, err
	}
	err = r.list(ctx)
	if events.ClassOf(err) == events.ClassNoRef {
		r.refs, err = nil, nil
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// has reports whether the remote has listed a ref.
func (r *remote) has(ref events.Ref) bool {
	if r.refs == nil {
		return false
	}
	_, ok := r.refs.References[ref.String()]
	return ok
}

func (r *remote) branchesAndTags() Refs {
	if r.refs == nil {
		return Refs{}
	}
	refs := Refs{Commits: make(map[string]string, len(r.refs.References))}
	for name, hash := range r.refs.References {
		if !strings.HasPrefix(name, "refs/heads/") && !strings.HasPrefix(name, "refs/tags/") {
			continue
		}
		if ref, err := events.ParseRef(name); err != nil || ref.String() != name {
			continue
		}
		if peeled, ok := r.refs.Peeled[name]; ok {
			hash = peeled
		}
		refs.Commits[name] = hash.String()
	}
	if name := r.defaultBranch(); refs.Commits[name] != "" {
		refs.Default, _ = events.ParseRef(name) // it has been parsed above
	}
	return refs
}
