package server

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/git/object"
	gitserve "lockstep/internal/git/serve"
	"lockstep/internal/volume"
)

// gitPath is where repositories are for Git: /git/acme/widgets.git.
const gitPath = "/git/"

// mountGit serves the refs that a token reads to Git, read-only.
func (s *Reading) mountGit(mux *routes, cfg Config) {
	handler, err := gitserve.New(gitserve.Config{
		Source: gitSource{s, GateOf(cfg, s.Tokens), cfg}, Log: cfg.Log, Observe: s.gitServed,
	})
	if err != nil {
		panic(err) // impossible: it has a source
	}
	s.git = handler
	placed := s.observed("git", s.placedGit(cfg, handler))
	mux.Handle("GET "+gitPath+"{repo}/info/refs", placed)
	mux.Handle("POST "+gitPath+"{repo}/git-upload-pack", placed)
}

// escapeGit escapes the slashes of the repository in a path for Git, as [plainRepos] does in others. ok is
// false for another path.
func escapeGit(path string) (escaped string, ok bool) {
	repo, ok := strings.CutPrefix(path, gitPath)
	for _, end := range []string{"/info/refs", "/git-upload-pack"} {
		if repo, found := strings.CutSuffix(repo, end); ok && found {
			return gitPath + url.PathEscape(repo) + end, true
		}
	}
	return "", false
}

// Close ends fetches and streams of results.
func (s *Reading) Close() {
	if s != nil && s.git != nil {
		s.git.Close()
	}
	if s != nil && s.Feed != nil {
		s.Feed.Close()
	}
}

// gitSource finds repositories for Git.
type gitSource struct {
	*Reading
	gate access.Gate
	cfg  Config
}

// Open implements [gitserve.Source].
func (g gitSource) Open(ctx context.Context, r *http.Request) (*gitserve.Repo, error) {
	name, ok := gitserve.Path(r, gitPath)
	who, err := g.gate.Identify(r) // first, so that nobody else learns which paths are valid
	if err != nil {
		return nil, g.refusal(ctx, name, err)
	}
	repo, err := events.ParseRepoPath(name)
	if !ok || err != nil {
		return nil, g.refusal(ctx, name, access.ErrNotFound)
	}
	visible, err := g.Reader.Visible(ctx, who, repo)
	if err != nil {
		return nil, g.refusal(ctx, name, err)
	}
	return g.repo(visible, who), nil
}

// refusal returns an error as Git's client gets it.
func (g gitSource) refusal(ctx context.Context, repo string, err error) error {
	status, shown := g.cfg.refusal(ctx, repo, err)
	if status == 0 {
		return err
	}
	return &gitserve.Refusal{Status: status, Text: shown.Error()}
}

// repo returns a repository with the refs that are visible.
func (g gitSource) repo(visible access.Visible, who access.Identity) *gitserve.Repo {
	repo := &gitserve.Repo{Name: visible.Repo.String(), Sender: who.App}
	var branches []gitserve.Ref
	for _, one := range visible.Refs {
		ref := gitserve.Ref{Name: one.Ref.String(), ID: object.ParseID(one.Commit)}
		repo.Format = ref.ID.Format()
		if one.Ref == events.DetachedHead {
			repo.HeadID = ref.ID
			continue
		}
		if repo.Refs = append(repo.Refs, ref); one.Default {
			repo.Head, repo.HeadID = ref.Name, ref.ID
		}
		if strings.HasPrefix(ref.Name, "refs/heads/") {
			branches = append(branches, ref)
		}
	}
	if repo.HeadID.IsZero() && len(branches) == 1 { // git clone checks it out
		repo.Head, repo.HeadID = branches[0].Name, branches[0].ID
	}
	slices.SortFunc(repo.Refs, func(a, b gitserve.Ref) int { return strings.Compare(a.Name, b.Name) })
	repo.Pin = func(ctx context.Context, wants []object.ID) (*gitserve.Pinned, error) {
		pinned, err := g.pin(ctx, visible, who, wants)
		if err != nil {
			return nil, g.refusal(ctx, repo.Name, err)
		}
		return pinned, nil
	}
	return repo
}

// pin pins the trees of the refs that name wants, and with them their stores.
func (g gitSource) pin(
	ctx context.Context, visible access.Visible, who access.Identity, wants []object.ID,
) (*gitserve.Pinned, error) {
	vol, err := g.Reader.Volume(ctx)
	if err != nil {
		return nil, err
	}
	before, err := earlierOf(vol, visible, who, wants)
	if err != nil {
		return nil, err
	}
	p := pins{Pinned: &gitserve.Pinned{Restricted: !who.Operator, Former: slices.Collect(maps.Keys(before))}, volume: vol}
	p.Close = p.close
	refs, earlier := wantedOf(visible, before, wants)
	for _, one := range earlier {
		opened, err := g.Reader.Open(ctx, visible, one)
		err = p.add(ctx, opened, err)
		switch {
		case err == nil:
			p.Earlier = append(p.Earlier, object.ParseID(one.Commit))
		case errors.Is(err, access.ErrReplaced):
			refs = visible.Refs // one of them may have it in its history
		default:
			p.close()
			return nil, err
		}
	}
	for _, one := range refs {
		opened, err := g.Reader.Open(ctx, visible, one)
		if err := p.add(ctx, opened, err); err != nil {
			p.close()
			return nil, err
		}
	}
	slices.Sort(p.Dirs)
	return p.Pinned, nil
}

// earlierOf returns the visible refs at commits that they had before, of which there are trees: those that
// the app was given, or all wanted ones for the operator.
func earlierOf(
	vol *volume.Volume, visible access.Visible, who access.Identity, wants []object.ID,
) (map[object.ID]access.Ref, error) {
	var among []string
	if who.Operator {
		for _, id := range wants {
			among = append(among, id.String())
		}
	} else {
		for _, one := range visible.Refs {
			among = append(among, one.Earlier...)
		}
	}
	kept, err := vol.Commits(visible.Repo, among)
	if err != nil {
		return nil, err
	}
	before := map[object.ID]access.Ref{}
	for _, one := range visible.Refs {
		for _, commit := range kept[one.Ref] {
			if who.Operator || slices.Contains(one.Earlier, commit) {
				ref := one
				ref.Commit = commit
				before[object.ParseID(commit)] = ref
			}
		}
	}
	return before, nil
}

// wantedOf returns the visible refs that name wants, each commit once; all of them if there are no wants, or
// one is not named by a ref. earlier are those wanted at a commit that they had before.
func wantedOf(visible access.Visible, before map[object.ID]access.Ref, wants []object.ID) (refs, earlier []access.Ref) {
	at := map[string]access.Ref{}
	for _, one := range visible.Refs {
		at[one.Commit] = one
	}
	all := len(wants) == 0
	added := map[object.ID]bool{}
	for _, id := range wants {
		if added[id] {
			continue
		}
		added[id] = true
		if one, ok := at[id.String()]; ok {
			refs = append(refs, one)
		} else if one, ok := before[id]; ok {
			earlier = append(earlier, one)
		} else {
			all = true
		}
	}
	if all {
		refs = visible.Refs
	}
	return refs, earlier
}
