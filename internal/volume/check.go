package volume

import (
	"context"
	"strings"

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
	Default   bool   // the ref is the default branch
	Object    string // what the ref names: an annotated tag, or the commit
	Published string // the commit published for the ref; "" for none
	// new since Published, newest first: Commit, and those that the clone's depth and a limit of 20,000 include
	Commits []string
	Partial bool // there may be more
	Rewound bool // Commit does not descend from Published
	Unknown bool // whether it does is not known

	// Read returns the type and the content of a commit or tag.
	Read func(id string) (kind string, content []byte, err error)
}

// maxHistory limits the commits that are read to compare histories.
const maxHistory = 20_000

// setCheck asks once per tip whether it is to be checked.
func (s *syncer) setCheck(t *target) {
	t.check = nil
	if s.req.Check != nil {
		t.check = s.req.Check(Tip{t.Ref, commitText(t.Commit)}, t.IsDefault)
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
	return t.check != nil && s.req.pinned() == "" && strings.HasPrefix(t.Ref.String(), "refs/tags/")
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
	published := s.shown(t)
	since, err := s.since(ctx, published)
	if err != nil {
		return err
	}
	c := Candidate{
		Tip: Tip{t.Ref, s.plan.Commit.String()}, Default: t.IsDefault, Object: s.plan.Commit.String(), Published: published,
		Partial: since.Partial, Rewound: since.Known && !since.Descends, Unknown: !since.Known, Read: s.readObject,
	}
	if s.needsTag(t) {
		c.Object = t.Want.String()
	}
	for _, h := range since.Commits {
		c.Commits = append(c.Commits, h.String())
	}
	if err := t.check(ctx, c); err != nil {
		return err
	}
	s.v.done("checked")
	return nil
}

// shown returns the commit that readers have of the ref, or "": also if its tree is marked as damaged, or if
// it is published under the second name only, because the ref has become the default branch.
func (s *syncer) shown(t *target) string {
	for _, name := range t.names {
		tree := s.v.linkedTree(s.f, s.v.publishedPath(name))
		if tree == "" || s.binding.MovedAway.covers(tree) {
			continue
		}
		g := checkout.GitDirOf(s.f.tree(tree))
		if ref, err := builtFor(g); err == nil && ref == t.Ref {
			return g.BuiltFrom()
		}
	}
	return ""
}

// since returns the history of the plan's commit since another, or since no commit if that is "".
func (s *syncer) since(ctx context.Context, other string) (object.Range, error) {
	if other == "" {
		return object.Range{Commits: []object.ID{s.plan.Commit}, Descends: true, Known: true}, nil
	}
	return s.objects.Between(ctx, object.ParseID(other), s.plan.Commit, s.store.shallow(), maxHistory)
}

// isForced reports whether the plan's commit is known not to descend from another.
func (s *syncer) isForced(ctx context.Context, other string) bool {
	if other == "" || other == s.plan.Commit.String() || events.Depth(1).Covers(events.Depth(s.history.Depth)) {
		return false
	}
	since, err := s.since(ctx, other)
	return err == nil && since.Known && !since.Descends
}

func (s *syncer) readObject(id string) (kind string, content []byte, err error) {
	defer object.RecoverCorrupt(&err)
	kind, content, err = s.objects.Raw(object.ParseID(id))
	if err != nil {
		return "", nil, object.Corruptf("read %.12s: %w", id, err)
	}
	return kind, content, nil
}
