package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/tree"
)

var (
	// ErrNotFound means that a repository, ref or commit does not exist, or is hidden from the app.
	ErrNotFound = errors.New("not found, or not watched by the app of this token")

	// ErrReplaced means that the tree of a visible commit is gone, and that the app's next sync is not settled yet.
	ErrReplaced = errors.New("the tree of this commit was replaced, and the next sync for this app is not settled " +
		"yet; try again")

	// ErrNoState means that a repository is published, and that Redis does not have the state of what is: it
	// may have lost its data.
	ErrNoState = errors.New("published, but Redis does not have its state: after a start, or if Redis has lost its " +
		"data, the next sync restores it; try again")
)

// Watches finds watches. [watch.Registry] implements it.
type Watches interface {
	OfApp(ctx context.Context, app string, repo events.RepoPath) ([]watch.Watch, error)
	Of(ctx context.Context, repo events.RepoPath) (watch.Set, error)
	ReposOf(ctx context.Context, q watch.Query) (watch.AppPage, error)
}

// States reads the state of repositories. [state.Store] implements it.
type States interface {
	LoadReadable(ctx context.Context, repo events.RepoPath) (state.Repo, error)
	DeniedOf(ctx context.Context, repo events.RepoPath, pairs [][2]string) ([]bool, error)
}

// Reader finds what an identity may read. It is safe for concurrent use.
type Reader struct {
	Watches Watches
	States  States
	Volume  func(context.Context) (*volume.Volume, error) // returns the volume, opened by [volume.ViewVolume] at least

	// Copies means that Redis starts empty, as that of a follower: what is published and not in the state yet
	// is [ErrNoState], not absent.
	Copies bool
}

// Visible is what an identity may read of a repository.
type Visible struct {
	Repo events.RepoPath // as first spelled
	Refs []Ref           // by name; never empty

	Unfetched bool // the cell from which it came serves it
}

// Ref is a visible ref.
type Ref struct {
	Ref        events.Ref
	Commit     string   // last settled for the app; for the operator, the published one
	Earlier    []string // commits settled for the app before that one, the newest first; none for the operator
	Default    bool     // it is the remote's default branch
	Submodules bool     // the files of submodules are visible
}

// notFoundStep is the multiple to which the duration of an unsuccessful lookup is rounded up,
// because Redis takes a little longer for a repository that other apps watch.
const notFoundStep = 10 * time.Millisecond

// Visible returns what an identity may read of a repository. It returns [ErrNotFound] if that is nothing,
// whatever the reason, and to apps only after a multiple of 10 ms.
func (r *Reader) Visible(ctx context.Context, who Identity, repo events.RepoPath) (Visible, error) {
	begin := time.Now()
	found, err := r.find(ctx, who, repo)
	if errors.Is(err, ErrNotFound) && !who.Operator {
		conceal(ctx, begin)
	}
	return found, err
}

// conceal waits until a multiple of notFoundStep has passed since begin.
func conceal(ctx context.Context, begin time.Time) {
	select {
	case <-time.After(notFoundStep - time.Since(begin)%notFoundStep):
	case <-ctx.Done():
	}
}

func (r *Reader) find(ctx context.Context, who Identity, repo events.RepoPath) (Visible, error) {
	var watches []watch.Watch
	if !who.Operator {
		var err error
		if watches, err = r.watches(ctx, who, repo); err != nil {
			return Visible{}, err
		}
	}
	return r.visible(ctx, who, repo, watches)
}

// visible is Visible with the watches of an app.
func (r *Reader) visible(
	ctx context.Context, who Identity, repo events.RepoPath, watches []watch.Watch,
) (Visible, error) {
	known, err := r.States.LoadReadable(ctx, repo)
	if err != nil {
		return Visible{}, err
	}
	heads := known.Heads()
	// Redis may have lost the state: a follower must not take that for a removal
	if r.Copies || who.Operator && len(heads) == 0 {
		if err := r.checkSettled(ctx, repo, known); err != nil {
			return Visible{}, err
		}
	}
	// the same without reading the volume, so that timing reveals less
	if len(heads) == 0 || !who.Operator && !known.HasGiven(who.App) {
		return Visible{}, ErrNotFound
	}
	vol, err := r.Volume(ctx)
	if err != nil {
		return Visible{}, err
	}
	plain, _, err := vol.Locate(repo, events.Ref{})
	if err != nil {
		return Visible{}, err
	}
	watches = slices.DeleteFunc(slices.Clone(watches), func(w watch.Watch) bool {
		return known.Denied(who.App, w.Credential)
	})
	visible := Visible{Repo: repo, Unfetched: known.IsUnfetched()}
	if name, err := events.ParseRepoPath(plain.Name); err == nil {
		visible.Repo = name
	}
	for name, head := range heads {
		ref, err := events.ParseRef(name)
		if err != nil {
			continue
		}
		found := Ref{Ref: ref, Commit: head, Default: ref == plain.Ref, Submodules: true}
		if who.Operator || found.limit(known, watches, who.App) {
			visible.Refs = append(visible.Refs, found)
		}
	}
	if len(visible.Refs) == 0 {
		return Visible{}, ErrNotFound
	}
	slices.SortFunc(visible.Refs, func(a, b Ref) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	return visible, nil
}

// checkSettled returns [ErrNoState] if a published ref is not in the state.
func (r *Reader) checkSettled(ctx context.Context, repo events.RepoPath, known state.Repo) error {
	vol, err := r.Volume(ctx)
	if err != nil {
		return err
	}
	published, _, err := vol.Published(repo)
	heads := known.Heads()
	for ref := range published.Commits {
		if heads[ref.String()] == "" {
			return ErrNoState
		}
	}
	return err
}

// Watched is like [Reader.Visible] for an app, but also returns a repository that has no visible
// refs, now or yet. It returns [ErrNotFound] if the app does not watch the repository.
func (r *Reader) Watched(ctx context.Context, who Identity, repo events.RepoPath) (Visible, error) {
	begin := time.Now()
	watches, err := r.watches(ctx, who, repo)
	if errors.Is(err, ErrNotFound) {
		conceal(ctx, begin)
	}
	if err != nil {
		return Visible{}, err
	}
	visible, err := r.visible(ctx, who, repo, watches)
	if errors.Is(err, ErrNotFound) {
		return Visible{Repo: watches[0].Repo}, nil
	}
	return visible, err
}

// List calls yield for each repository of a page that the app of a query may read, in order, and returns
// [watch.Query.After] of the next page, "" for the last. A page may be short, or empty, without being the
// last. List returns the error of yield.
func (r *Reader) List(ctx context.Context, q watch.Query, yield func(Visible) error) (next string, err error) {
	page, err := r.Watches.ReposOf(ctx, q)
	if err != nil {
		return "", err
	}
	for _, one := range page.Repos {
		visible, err := r.visible(ctx, Identity{App: q.App}, one.Repo, one.Watches)
		if errors.Is(err, ErrNotFound) || visible.Unfetched { // another cell lists that, with all of its refs
			continue
		}
		if err != nil {
			return "", err
		}
		if err := yield(visible); err != nil {
			return "", err
		}
	}
	return page.Next, nil
}

// watches returns the watches of an app, or [ErrNotFound] if there are none.
func (r *Reader) watches(ctx context.Context, who Identity, repo events.RepoPath) ([]watch.Watch, error) {
	if who.App == "" {
		return nil, ErrNotFound
	}
	watches, err := r.Watches.OfApp(ctx, who.App, repo)
	if err != nil {
		return nil, err
	}
	if len(watches) == 0 {
		return nil, ErrNotFound
	}
	return watches, nil
}

// limit restricts a ref to what the watches of an app allow. It returns false if the app may not read the ref.
func (f *Ref) limit(known state.Repo, watches []watch.Watch, app string) bool {
	f.Commit, f.Earlier, f.Submodules = known.Given(app, f.Ref), known.Earlier(app, f.Ref), false
	if f.Commit == "" {
		return false
	}
	selected := false
	for _, w := range watches {
		if !w.Selects(f.Ref, f.Default) {
			continue
		}
		selected = true
		f.Submodules = f.Submodules || submodules.Of(w).Mode != events.SubmodulesOff
	}
	return selected
}

// Find returns the visible ref with a name, as [events.ParseRef] parses it; the zero ref selects the default
// branch. It returns [ErrNotFound] if there is none.
func (v Visible) Find(ref events.Ref) (Ref, error) {
	for _, one := range v.Refs {
		if one.Ref == ref || ref.IsZero() && one.Default {
			return one, nil
		}
	}
	return Ref{}, ErrNotFound
}

// At returns a visible ref at a commit, or [ErrNotFound] if no ref is at it.
func (v Visible) At(commit string) (Ref, error) {
	for _, one := range v.Refs {
		if one.Commit == commit {
			return one, nil
		}
	}
	return Ref{}, ErrNotFound
}

// Depths returns how much history is kept of each visible ref, as far as it is published, in the order of v.Refs.
func (r *Reader) Depths(ctx context.Context, v Visible) ([]events.Depth, error) {
	vol, err := r.Volume(ctx)
	if err != nil {
		return nil, err
	}
	depths := make([]events.Depth, len(v.Refs))
	for i, ref := range v.Refs {
		now, _, err := vol.Locate(v.Repo, ref.Ref)
		if err != nil {
			return nil, err
		}
		depths[i] = now.Depth
	}
	return depths, ctx.Err()
}

// Open opens and pins the tree of a visible ref. It returns [ErrReplaced] if that is gone. The caller closes it.
func (r *Reader) Open(ctx context.Context, v Visible, ref Ref) (*tree.Tree, error) {
	vol, err := r.Volume(ctx)
	if err != nil {
		return nil, err
	}
	now, _, err := vol.Locate(v.Repo, ref.Ref)
	if err != nil {
		return nil, err
	}
	trees := []string{now.Tree}
	if now.Commit != ref.Commit {
		if trees, err = vol.TreesAt(v.Repo, ref.Ref, ref.Commit); err != nil {
			return nil, err
		}
	}
	for _, path := range trees {
		t, err := tree.OpenResult(vol.Root(), events.Result{
			Type: events.ResultSynced, Repo: v.Repo, Tree: path, Path: now.Name, After: ref.Commit,
		})
		if !errors.Is(err, tree.ErrGone) {
			return t, err
		}
	}
	return nil, fmt.Errorf("%s of %s at %.12s: %w", ref.Ref, v.Repo, ref.Commit, ErrReplaced)
}
