package serve

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/internal/git/object"
)

// negotiation determines the response to one request. Its store is open until close.
type negotiation struct {
	repo    *Repo
	store   *Pinned
	req     *fetchRequest
	objects *object.Store
	history *object.History
	reach   *reach // from the visible refs; nil until needed
}

// negotiate pins the objects of a repository.
func negotiate(ctx context.Context, repo *Repo, req *fetchRequest) (*negotiation, error) {
	store, err := repo.Pin(ctx, req.wants)
	if err != nil {
		return nil, err
	}
	objects := object.Open(store.Dirs...)
	return &negotiation{
		repo: repo, store: store, req: req, objects: objects,
		history: object.NewHistory(ctx, objects, store.Shallow, maxCommits),
	}, nil
}

// close closes the store and releases the objects.
func (n *negotiation) close() {
	n.objects.Close()
	if n.store.Close != nil {
		n.store.Close()
	}
}

// targets are the objects that a request wants.
type targets struct {
	commits []*object.Node
	others  []object.ID // tags, and trees and blobs that tags name
}

// targets resolves the wants, and refuses those that the sender may not have.
func (n *negotiation) targets() (t targets, err error) {
	defer object.RecoverCorrupt(&err)
	if err := n.refuseIncomplete(); err != nil {
		return t, err
	}
	if err := n.admit(n.req.wants); err != nil {
		return t, err
	}
	added := map[object.ID]bool{}
	for _, id := range n.req.wants {
		if err := n.resolve(id, &t, added); err != nil {
			return t, err
		}
	}
	return t, nil
}

// refuseIncomplete refuses to serve a shallow store to clients that would assume that it is complete.
func (n *negotiation) refuseIncomplete() error {
	r := n.req
	if len(n.store.Shallow) == 0 || r.deepens() && !r.relative && r.depth != unlimited || len(r.wants) == 0 {
		return nil
	}
	return refusef("kept at depth %d: use --depth, or watch with full depth", n.store.Depth)
}

// admit refuses wants that are not reachable from a visible ref.
func (n *negotiation) admit(wants []object.ID) error {
	tips := map[object.ID]bool{n.repo.HeadID: true}
	for _, ref := range n.repo.Refs {
		tips[ref.ID], tips[ref.Peeled] = true, true
	}
	for _, id := range n.store.Earlier {
		tips[id] = true
	}
	delete(tips, object.ZeroID)
	var others []object.ID
	for _, id := range wants {
		if !tips[id] {
			others = append(others, id)
		}
	}
	if len(others) == 0 {
		return nil
	}
	reachable, err := n.find(others, maxCommits)
	if err != nil {
		return err
	}
	for _, id := range others {
		if !reachable[id] {
			return refusef("upload-pack: not our ref %s", id)
		}
	}
	return nil
}

// find returns which commits are reachable from visible refs: see [reach.find].
func (n *negotiation) find(ids []object.ID, limit int) (map[object.ID]bool, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if n.reach == nil {
		n.reach = &reach{History: n.history}
		for _, id := range n.tips() {
			c, err := n.history.CommitOf(id)
			if err != nil {
				return nil, err
			}
			if c != nil {
				if err := n.reach.add(c); err != nil {
					return nil, err
				}
			}
		}
	}
	return n.reach.find(ids, limit)
}

// tips returns the peeled targets of the visible refs.
func (n *negotiation) tips() (ids []object.ID) {
	if !n.repo.HeadID.IsZero() {
		ids = append(ids, n.repo.HeadID)
	}
	for _, ref := range n.repo.Refs {
		if ref.Peeled.IsZero() {
			ids = append(ids, ref.ID)
		} else {
			ids = append(ids, ref.Peeled)
		}
	}
	return ids
}

// maxTags is the maximum number of tags of tags that are followed.
const maxTags = 16

// resolve adds a want, and what it names if it is a tag.
func (n *negotiation) resolve(id object.ID, t *targets, added map[object.ID]bool) error {
	for range maxTags {
		if added[id] {
			return nil
		}
		added[id] = true
		c := n.history.Node(id)
		if err := n.history.Load(c); err != nil {
			return err
		}
		if c.Flags&object.Absent == 0 {
			t.commits = append(t.commits, c)
			return nil
		}
		t.others = append(t.others, id)
		target, err := n.tagged(id)
		if err != nil || target.IsZero() {
			return err
		}
		id = target
	}
	return nil
}

// tagged returns the target of a tag; the zero ID if the object is not a tag.
func (n *negotiation) tagged(id object.ID) (object.ID, error) {
	kind, content, err := n.objects.Raw(id)
	switch {
	case errors.Is(err, object.ErrNoCommit) || err == nil && kind != plumbing.TagObject.String():
		return object.ZeroID, nil // a tree or blob
	case err != nil:
		return object.ZeroID, object.Corruptf("read tag %s: %w", id, err)
	}
	target, err := object.TagTarget(id, content)
	if err != nil {
		return object.ZeroID, object.Corruptf("read tag %s: %w", id, err)
	}
	return target, nil
}

// common returns the haves that are acknowledged, each once, and their commits.
func (n *negotiation) common() (acks []object.ID, haves []*object.Node, err error) {
	defer object.RecoverCorrupt(&err)
	seen := map[object.ID]bool{}
	known := func(object.ID) bool { return true }
	if n.store.Restricted {
		reachable, err := n.find(n.req.haves, haveWalk)
		if err != nil {
			return nil, nil, err
		}
		former := setOf(n.store.Former)
		known = func(id object.ID) bool { return reachable[id] || former[id] }
	}
	for _, id := range n.req.haves {
		if seen[id] || !known(id) {
			continue
		}
		seen[id] = true
		c, err := n.history.CommitOf(id)
		if err != nil {
			return nil, nil, err
		}
		if c != nil {
			acks, haves = append(acks, id), append(haves, c)
		}
	}
	return acks, haves, nil
}

// plan lists the contents of a pack.
type plan struct {
	difference
	others    []object.ID // objects that are sent besides those of the commits
	thin, ofs bool
}

// maxEdges is the number of commits of the client that are compared with those it lacks.
const maxEdges = 32

// plan returns the pack to send for targets to a client that has haves.
func (n *negotiation) plan(t targets, haves []*object.Node, b boundary) (p plan, err error) {
	defer object.RecoverCorrupt(&err)
	wants := slices.Concat(t.commits, b.reopened)
	p = plan{others: t.others, thin: n.req.thin, ofs: n.req.ofs}
	commits, err := n.history.Without(wants, haves, b.ends, setOf(n.req.shallow))
	if err != nil {
		return p, err
	}
	p.difference = newDifference(commits, haves)
	p.edges = p.edges[:min(len(p.edges), maxEdges)]
	p.thin = p.thin && len(p.edges) > 0
	if n.req.tags {
		err = n.includeTags(&p)
	}
	return p, err
}

// includeTags adds the annotated tags of the commits that are sent.
func (n *negotiation) includeTags(p *plan) error {
	sent := setOf(p.others)
	for _, ref := range n.repo.Refs {
		c := n.history.Known[ref.Peeled]
		if ref.Peeled.IsZero() || c == nil || c.Flags&(object.Wanted|object.Held) != object.Wanted {
			continue
		}
		t := targets{}
		if err := n.resolve(ref.ID, &t, sent); err != nil {
			return err
		}
		p.others = append(p.others, t.others...)
	}
	return nil
}

// key identifies the pack of a plan: equal keys are equal packs.
func (p *plan) key(dirs []string) [sha256.Size]byte {
	sum := sha256.New()
	add := func(ids []object.ID) {
		_ = binary.Write(sum, binary.BigEndian, uint64(len(ids)))
		for _, id := range ids {
			sum.Write(id.Bytes())
		}
	}
	for _, dir := range dirs {
		sum.Write([]byte(dir + "\x00"))
	}
	fmt.Fprint(sum, "\x00", p.thin, p.ofs)
	add(idsOf(p.commits))
	add(idsOf(p.edges))
	add(p.others)
	return [sha256.Size]byte(sum.Sum(nil))
}

func idsOf(commits []*object.Node) []object.ID {
	ids := make([]object.ID, len(commits))
	for i, c := range commits {
		ids[i] = c.ID
	}
	return ids
}
