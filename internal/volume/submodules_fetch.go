package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wire"
)

// PartRemote is how to fetch a submodule.
type PartRemote struct {
	Auth    wire.Auth
	AuthFor func(ctx context.Context, url string) (wire.Auth, error) // as in [SyncRequest], for the submodule
	Limiter wire.Limiter                                             // optional

	// Credential is kept for a submodule that cannot be fetched; see [checkout.Part].
	Credential string
	// Refused returns the error to report for one of the remote, and whether another try, with another
	// PartRemote, may succeed. Optional.
	Refused func(err error) (report error, again bool)
}

// partRemote returns how to fetch a submodule.
func (s *syncer) partRemote(ctx context.Context, url string) (PartRemote, error) {
	url = s.v.net.Asked(url)
	if s.req.Submodule != nil {
		return s.req.Submodule(ctx, url)
	}
	remote := PartRemote{AuthFor: s.req.AuthFor, Limiter: s.req.Limiter}
	if s.req.AuthFor == nil {
		return remote, nil
	}
	var err error
	remote.Auth, err = s.req.AuthFor(ctx, url)
	return remote, err
}

// isForeign reports whether the URL of a submodule is untrusted: it has another origin than the repository's.
func (s *syncer) isForeign(url string) bool {
	return s.req.Foreign || !wire.SameOrigin(s.req.URL, url)
}

// openPart reads the .gitmodules and the submodules of a submodule from its store, after fetching the store
// if the repository does not have it.
func (c *collector) openPart(ctx context.Context, part *checkout.Part, within *super) error {
	s, dir := c.s, c.s.f.part(*part)
	defer c.claim(dir)()
	if _, err := os.Lstat(dir); err == nil {
		if err := c.readPart(ctx, *part, within); err == nil || events.ClassOf(err) != events.ClassCorrupt {
			return err
		}
		discard := func() error { return s.f.discard(dir) }
		if err := s.f.guarded(ctx, s.req.Fence, discard); err != nil {
			return err
		}
	}
	for first := true; ; first = false {
		from, err := s.partRemote(ctx, part.URL)
		part.Credential = from.Credential
		if err != nil {
			return err
		}
		if err = c.fetch(ctx, *part, from, within); err == nil {
			return nil
		}
		again := false
		if from.Refused != nil {
			err, again = from.Refused(err)
		}
		if !first || !again {
			return err
		}
	}
}

// maxFetches is the number of submodules of one tree that are fetched at once, as far as their hosts have places.
const maxFetches = 8

// fetch fetches a submodule and reads it.
func (c *collector) fetch(ctx context.Context, part checkout.Part, from PartRemote, within *super) error {
	select {
	case c.fetches <- struct{}{}:
		defer func() { <-c.fetches }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := c.fetchPart(ctx, part, from); err != nil {
		return err
	}
	return c.readPart(ctx, part, within)
}

// claim waits until no other submodule with the same store is fetched: the same commit can be at several paths.
func (c *collector) claim(dir string) (release func()) {
	c.mu.Lock()
	claim := c.claims[dir]
	if claim == nil {
		claim = &sync.Mutex{}
		c.claims[dir] = claim
	}
	c.mu.Unlock()
	claim.Lock()
	return claim.Unlock
}

// readPart reads what openPart returns from the store of a submodule. It ends the sync if there are too many
// files in all of them.
func (c *collector) readPart(ctx context.Context, part checkout.Part, within *super) error {
	s, limit := c.s, c.s.v.cfg.MaxTreeFiles
	release, err := c.readAlone(ctx)
	if err != nil {
		return err
	}
	defer release()
	objects := object.Open(s.f.part(part))
	defer objects.Close()
	plan, err := s.newPlan(ctx, objects, part.Commit, nil)
	if err != nil {
		return err
	}
	if c.files += plan.Size(); c.files > limit {
		c.fail(checkout.TooManyFiles(limit))
		return nil
	}
	if within.submodules, err = plan.Submodules(); err != nil {
		return err
	}
	return within.read(objects, plan.Tree())
}

// readAlone waits until no other submodule of this sync is indexed or read, and takes the sync's slot.
func (c *collector) readAlone(ctx context.Context) (release func(), err error) {
	c.reading.Lock()
	if err := c.s.slot.take(ctx, nil); err != nil { // the progress is that of all submodules
		c.reading.Unlock()
		return nil, err
	}
	return func() {
		c.s.slot.leave()
		c.reading.Unlock()
	}, nil
}

// fetchPart fetches the commit of a submodule into its store. Unless it has the origin of the repository's
// remote, its URL is foreign.
func (c *collector) fetchPart(ctx context.Context, part checkout.Part, from PartRemote) error {
	if err := c.s.v.checkFree(0); err != nil { // earlier submodules may have used up the space
		return err
	}
	remote, err := c.s.listPart(ctx, part, from, "HEAD")
	if err != nil {
		return err
	}
	defer remote.Close()
	tip, err := remote.ResolveCommit(part.Commit.String(), part.Commit)
	if err != nil { // the server sends no commits by their hash
		return c.searchPart(ctx, part, from, err)
	}
	want := wire.FetchRequest{Tip: tip.Want, ByHash: tip.ByHash, Depth: 1}
	base, commit := c.s.basePart(ctx, part)
	if base == (store{}) {
		return c.receivePart(ctx, remote, want, part, base)
	}
	more := want
	more.Haves, more.Shallow = []object.ID{commit}, base.shallow()
	err = c.receivePart(ctx, remote, more, part, base)
	if worthRefetching(ctx, err) { // the base may be damaged
		return c.receivePart(ctx, remote, want, part, store{})
	}
	return err
}

// basePart returns the store and the commit of a submodule of the last tree with the same remote, from which
// the remote need not send what is unchanged; zero if there is none, or if the store has become too large
// with objects that its commit does not need.
func (s *syncer) basePart(ctx context.Context, part checkout.Part) (store, object.ID) {
	if s.refetched {
		return store{}, object.ZeroID
	}
	remote := events.CanonicalRemote(part.URL)
	for _, last := range s.last.Parts().List {
		if !last.IsFilled() || events.CanonicalRemote(last.URL) != remote {
			continue
		}
		dir, full := s.f.part(last), int64(0)
		content, err := os.ReadFile(filepath.Join(dir, fullName))
		if err == nil {
			_, err = fmt.Sscan(string(content), &full)
		}
		now, sizeErr := spaceBelow(ctx, filepath.Join(dir, "objects"))
		if err == nil && sizeErr == nil && now <= 2*full+minLoose {
			return store{dir}, last.Commit
		}
	}
	return store{}, object.ZeroID
}

// fullName is a file in the store of a submodule that has the bytes on disk of its objects after the last full fetch.
const fullName = "lockstep-full"

// listPart lists refs of a submodule's remote. The caller closes the session.
func (s *syncer) listPart(
	ctx context.Context, part checkout.Part, from PartRemote, prefix string,
) (*wire.Session, error) {
	remote, err := s.v.net.Dial(part.URL, from.Auth, s.isForeign(part.URL), s.v.cfg.wireLimits(from.Limiter))
	if err != nil {
		return nil, err
	}
	if err := remote.List(ctx, prefix); err != nil {
		remote.Close()
		return nil, err
	}
	return remote, nil
}

// maxSearched is the number of branches whose histories are searched for a commit that a server does not send
// by its hash.
const maxSearched = 8

// searchPart fetches branches with their histories, the default branch first, until one contains the commit.
// refusal is the error of the server that does not send the commit by its hash.
func (c *collector) searchPart(ctx context.Context, part checkout.Part, from PartRemote, refusal error) error {
	remote, err := c.s.listPart(ctx, part, from, "refs/heads/")
	if err != nil {
		return err
	}
	defer remote.Close()
	refs := remote.BranchesAndTags()
	tips := map[string]bool{}
	first := refs.Commits[refs.Default]
	for _, tip := range append([]string{first}, sortedValues(refs.Commits)...) {
		if len(tip) != len(part.Commit.String()) || tips[tip] { // no branch, or an ID of another format
			continue
		}
		if tips[tip] = true; len(tips) > maxSearched {
			break
		}
		want := wire.FetchRequest{Tip: object.ParseID(tip), Depth: git.FullDepth}
		if err := c.receivePart(ctx, remote, want, part, store{}); err == nil || !errors.Is(err, errNotInPack) {
			return err
		}
	}
	return refusal
}

func sortedValues(m map[string]string) (values []string) {
	for _, value := range m {
		values = append(values, value)
	}
	slices.Sort(values)
	return values
}

// errNotInPack means that a pack does not contain the commit of a submodule.
var errNotInPack = events.Errorf(events.Retryable, events.ClassServer,
	"its remote sent a pack without the commit that was asked for")

// receivePart fetches a pack, checks that the commit in it, and in base if there is one, is complete, and
// makes these the submodule's store.
func (c *collector) receivePart(
	ctx context.Context, remote *wire.Session, want wire.FetchRequest, part checkout.Part, base store,
) (err error) {
	defer object.RecoverCorrupt(&err)
	at := filepath.Join(c.s.f.quarantine(c.s.req.Fence), fmt.Sprintf("part-%d", c.number.Add(1)))
	q, err := object.OpenQuarantine(filepath.Join(at, "pack"))
	if err != nil {
		return err
	}
	defer os.RemoveAll(at)
	q.Format = part.Commit.Format()
	shallow, err := c.s.download(ctx, remote, want, q)
	if err != nil {
		return err
	}
	release, err := c.readAlone(ctx)
	if err != nil {
		return err
	}
	defer release()
	objects := object.Open(q.Dir)
	defer objects.Close()
	if base == (store{}) {
		err = q.Index(ctx, c.s.v.cfg.packLimits(), object.Progress{})
	} else {
		objects.Add(base.dir)
		err = q.Unpack(ctx, base.dir, c.s.v.cfg.packLimits(), object.Progress{})
	}
	if err != nil {
		return err
	}
	switch has, err := objects.Has(part.Commit); {
	case err != nil:
		return err
	case !has:
		return errNotInPack
	}
	plan, err := c.s.newPlan(ctx, objects, part.Commit, nil)
	switch {
	case err != nil:
		return err
	case plan.Commit != part.Commit:
		return object.Hostilef("%s is a tag, not a commit", part.Commit)
	}
	if err := c.s.checkFetched(ctx, q.Dir); err != nil {
		return err
	}
	built := store{filepath.Join(at, "store")}
	if err := c.s.buildPart(ctx, q, built, base); err != nil {
		return err
	}
	ref, err := events.ParseRef(part.Commit.String())
	if err != nil {
		return err
	}
	if err := built.hold(ref, part.Commit, events.Depth(want.Depth), shallow); err != nil {
		return err
	}
	err = c.s.f.guarded(ctx, c.s.req.Fence, func() error {
		err := os.MkdirAll(c.s.f.parts(), 0o755)
		if err == nil {
			err = os.Rename(built.dir, c.s.f.part(part))
		}
		return disk.Error("store a submodule", err)
	})
	if err == nil {
		c.s.v.done("part")
	}
	return err
}

// buildPart makes a store of the objects of a pack, and of base if there is one.
func (s *syncer) buildPart(ctx context.Context, q object.Quarantine, built, base store) error {
	err := os.RemoveAll(built.dir)
	if err == nil && base == (store{}) {
		err = object.MakeBare(built.dir, q.Format)
	} else if err == nil {
		_, err = linkAll(ctx, base.dir, base.dir, built.dir)
	}
	if err != nil {
		return disk.Error("create the store of a submodule", err)
	}
	if err := q.Release(built.dir); err != nil || base != (store{}) {
		return err
	}
	full, err := spaceBelow(ctx, filepath.Join(built.dir, "objects"))
	if err == nil {
		err = os.WriteFile(filepath.Join(built.dir, fullName), fmt.Appendln(nil, full), 0o644)
	}
	return disk.Error("create the store of a submodule", err)
}
