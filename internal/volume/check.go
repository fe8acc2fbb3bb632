package volume

import (
	"context"
	"slices"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// Check decides whether a commit may be published. Its error ends the sync with what is published unchanged.
// It may be called again for a commit that is already published.
type Check func(context.Context, Candidate) error

// Candidate is a commit that a [Check] decides about.
type Candidate struct {
	Tip              // the ref and its commit
	Default   bool   // the ref is published under the plain name: it is the default branch, or the former one
	Object    string // what the ref names: an annotated tag, or the commit
	Published string // the commit published for the ref; "" for none
	Plain     string // the commit published under the plain name, for whatever ref, if Default; "" for none

	// Since returns the history of the commit since an older one, such as Published, or since none if that is "".
	Since func(ctx context.Context, older string) (History, error)

	// Read returns the type and the content of a commit, tag or tree.
	Read func(id string) (kind string, content []byte, err error)
}

// History is what a commit adds to an older one.
type History struct {
	// newest first: the commit itself, and those that the clone's depth and a limit of 20,000 include
	Commits []string
	Partial bool // there may be more
	Rewound bool // the commit does not descend from the older one
	Unknown bool // whether it does is not known
}

// maxHistory limits the commits that are read to compare histories.
const maxHistory = 20_000

// isPlain reports whether a target is published under the plain name.
func (s *syncer) isPlain(t *target) bool { return slices.Contains(t.names, s.binding.Repo.String()) }

// setCheck asks once per tip whether it is to be checked.
func (s *syncer) setCheck(t *target) {
	t.check = nil
	if s.req.Check != nil {
		t.check = s.req.Check(Tip{t.Ref, commitText(t.Commit)}, s.isPlain(t))
	}
}

func commitText(h object.ID) string {
	if h.IsZero() {
		return ""
	}
	return h.String()
}

// needsTag reports whether the tag itself must be in the store to be checked.
func (s *syncer) needsTag(t *target) bool {
	return t.check != nil && s.req.pinned() == "" && t.Ref.IsTag()
}

// hasTag reports whether a store has the tag that is to be checked, if any: it may have only its commit. It
// is false if the tag names another commit than the remote says, which would be published by the check of the
// tag.
func (s *syncer) hasTag(t *target, in store) bool {
	if !s.needsTag(t) {
		return true
	}
	objects := object.Open(in.dir)
	defer objects.Close()
	commit, err := peel(objects, t.Want)
	return err == nil && commit == t.Commit
}

// peel returns the commit that an object is or, as a tag, names.
func peel(objects *object.Store, h object.ID) (commit object.ID, err error) {
	defer object.RecoverCorrupt(&err)
	c, err := objects.Commit(h)
	if err != nil {
		return object.ZeroID, err
	}
	return c.Hash, nil
}

// admit asks the caller whether the plan's commit may be published.
func (s *syncer) admit(ctx context.Context, t *target) error {
	if t.check == nil {
		return nil
	}
	c := Candidate{
		Tip: Tip{t.Ref, s.plan.Commit.String()}, Default: s.isPlain(t), Object: s.plan.Commit.String(),
		Since: s.histories(), Read: s.readObject,
	}
	c.Published, c.Plain = s.shown(t)
	if s.needsTag(t) {
		c.Object = t.Want.String()
	}
	if err := t.check(ctx, c); err != nil {
		return err
	}
	s.v.done("checked")
	return nil
}

// shown returns the commits that readers have of the ref, and under the plain name if that is one of the target's, or "":
// also if a tree is marked as damaged, or if the ref is published under the second name only, because it has become the
// default branch.
func (s *syncer) shown(t *target) (ofRef, plain string) {
	for _, name := range t.names {
		tree := s.v.linkedTree(s.f, s.v.publishedPath(name))
		if tree == "" || s.binding.MovedAway.covers(tree) {
			continue
		}
		g := checkout.GitDirOf(s.f.tree(tree))
		if name == s.binding.Repo.String() {
			plain = g.BuiltFrom()
		}
		if ref, err := builtFor(g); ofRef == "" && err == nil && ref == t.Ref {
			ofRef = g.BuiltFrom()
		}
	}
	return ofRef, plain
}

// since returns the history of the plan's commit since another, or since no commit if that is "".
func (s *syncer) since(ctx context.Context, other string) (object.Range, error) {
	if other == "" {
		return object.Range{Commits: []object.ID{s.plan.Commit}, Descends: true, Known: true}, nil
	}
	return s.objects.Between(ctx, object.ParseID(other), s.plan.Commit, s.store.shallow(), maxHistory)
}

// histories returns [Candidate.Since], which reads each history once.
func (s *syncer) histories() func(context.Context, string) (History, error) {
	known := map[string]History{}
	return func(ctx context.Context, older string) (History, error) {
		if h, ok := known[older]; ok {
			return h, nil
		}
		since, err := s.since(ctx, older)
		if err != nil {
			return History{}, err
		}
		h := History{Partial: since.Partial, Rewound: since.Known && !since.Descends, Unknown: !since.Known}
		for _, id := range since.Commits {
			h.Commits = append(h.Commits, id.String())
		}
		known[older] = h
		return h, nil
	}
}

// isForced reports whether the plan's commit is known not to descend from another.
func (s *syncer) isForced(ctx context.Context, other string) bool {
	if other == "" || other == s.plan.Commit.String() || events.Depth(1).Covers(events.Depth(s.history.Depth)) {
		return false
	}
	since, err := s.since(ctx, other)
	return err == nil && since.Known && !since.Descends
}

// Follows reports whether a commit is known to descend from an older one, by the commits of the repository that the
// volume has, of whatever depth. The caller holds the lease.
func (v *Volume) Follows(ctx context.Context, repo events.RepoPath, commit, older string) bool {
	dirs, err := v.folder(repo).storeDirs()
	if err != nil || commit == "" || older == "" {
		return false
	}
	objects := object.Open(dirs...)
	defer objects.Close()
	const atOnce = 1000 // of newer commits: a worker may ask for many older ones
	since, err := objects.Between(ctx, object.ParseID(older), object.ParseID(commit), nil, atOnce)
	return err == nil && since.Descends
}

func (s *syncer) readObject(id string) (kind string, content []byte, err error) {
	defer object.RecoverCorrupt(&err)
	kind, content, err = s.objects.Raw(object.ParseID(id))
	if err != nil {
		return "", nil, object.Corruptf("read %.12s: %w", id, err)
	}
	return kind, content, nil
}
