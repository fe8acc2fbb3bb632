package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Poll lists the remote's refs and requests a sync of each watched ref whose commit differs from the one on
// the volume or the one last reported to the app. This catches missed webhooks and lost clones and results.
// The requests are published in the step that settles the poll. Each sync checks its own app's credential:
// the poll may have used another app's.
//
//	the repository is not found   a failure is reported and the clone kept: a forge answers the same to a token that
//	                              lost access. The forge's own webhook removes the clone
//	a published ref is gone       its removal is requested, which checks again; not for the default branch
//	a published ref is unwatched  its removal is requested, if it was published for watches only; a pattern
//	                              watches at most max-refs refs
//	a watched ref has moved       a sync is requested for each app that watches it and has not received the commit
//	an app never received it, or  a sync is requested for that app
//	may not have
//	the credential of an app was  a sync is requested for that app
//	refused
//	other apps have other         one of them is tried too, at random, and a refusal is recorded
//	credentials
//	the volume differs            a sync is requested, also if its LFS files or submodules do
//	a submodule's remote did not  a sync is requested
//	answer
//	another credential covers a   a sync is requested
//	missing submodule's URL
//	an unwatched ref is in the    it is removed from the state: a removal whose worker died, and that was refused when
//	state, but not published      it was repeated
//	there is neither a clone nor  the state forgets the clone, for the same reason
//	anything to sync
//	a watch's rules or their      a sync is requested, which checks the published commit again
//	keys have changed
//	the views of a watch have     a sync is requested, which compares the published commit again
//	changed, or lack trees        and publishes them
//	an app no longer has views    the state of these views is dropped
//	of a ref
//	the remote redirects to       the move is requested, if a watch asks for it
//	another path, permanently
//	a commit was refused          nothing, until the ref, the rules or the keys change
//	there are no watches          nothing
//
// A poll for one app, after it has added a pattern, requests syncs for that app, and notes what patterns
// leave out; the rest waits for the next poll for all.
func (h *Handlers) Poll(ctx context.Context, job Job) (Outcome, error) {
	repo := job.Change.Repo
	watches, err := h.watches(ctx, repo)
	if err != nil {
		return Outcome{}, err
	}
	result := job.Result(events.ResultPolled)
	concerned := watches
	if job.Change.App != "" {
		concerned = slices.DeleteFunc(slices.Clone(watches), func(w watch.Watch) bool { return w.App != job.Change.App })
	}
	forgetUnwatched(job.Known, watches)
	if len(concerned) == 0 {
		return Outcome{Result: result}, nil
	}
	admitted, refs, err := h.listAsAnyone(ctx, job, concerned)
	if err != nil {
		return Outcome{}, fmt.Errorf("poll %s: %w", repo, err)
	}
	if err := h.proveOther(ctx, job, concerned, admitted); err != nil {
		return Outcome{}, fmt.Errorf("poll %s: %w", repo, err)
	}
	outcome, err := h.missing(ctx, job, watches, admitted, refs)
	if err != nil {
		return Outcome{}, fmt.Errorf("poll %s: %w", repo, err)
	}
	move, moved, err := h.redirected(ctx, job, watches, admitted, refs.Moved, nextID(job, outcome.Changes))
	if err != nil {
		return Outcome{}, fmt.Errorf("poll %s: %w", repo, err)
	}
	if moved { // after the syncs, which still find their watches
		outcome.Changes = append(outcome.Changes, move)
	}
	result.Due, result.LeftOut = len(outcome.Changes), outcome.Result.LeftOut
	if result.Due == 0 {
		forgetUngiven(job.Known, job.Change.App)
	}
	outcome.Result = result
	if len(outcome.State)+len(outcome.Drop) > 0 {
		maps.Copy(outcome.State, state.FenceFields(result))
	}
	return outcome, nil
}

func watched(w watch.Watch) source { return source{w.URL, w.Credential, w.Auto} }

// listAsAnyone lists the refs using the first watch that can: whose URL and credential are configured, and which the
// remote accepts and does not limit. It returns that watch.
func (h *Handlers) listAsAnyone(
	ctx context.Context, job Job, watches []watch.Watch,
) (watch.Watch, volume.Refs, error) {
	var first, limited error
	tried := map[source]bool{}
	for _, w := range watches {
		if tried[watched(w)] {
			continue
		}
		tried[watched(w)] = true
		refs, err := h.listRefs(ctx, job, job.Change.Repo, watched(w))
		scope := events.ScopeOf(err)
		switch {
		case err == nil:
			return w, refs, nil
		case events.DispositionOf(err) == events.Contention, scope == events.ScopeHostCredential:
			limited = cmp.Or(limited, err)
			continue
		case scope != events.ScopeCredential && events.ClassOf(err) != events.ClassConfig && !errors.Is(err, errUnresolved):
			return w, volume.Refs{}, err
		}
		if failed := h.deny(ctx, job, watches, watched(w), err); failed != nil {
			return w, volume.Refs{}, failed
		}
		first = cmp.Or(first, err)
	}
	return watch.Watch{}, volume.Refs{}, cmp.Or(limited, first)
}

// errUnresolved means that a credential cannot be used, as it is not configured for example.
var errUnresolved = errors.New("no credential")

func (h *Handlers) listRefs(
	ctx context.Context, job Job, repo events.RepoPath, from source,
) (volume.Refs, error) {
	auth, err := h.Credentials.Resolve(ctx, from.credential, from.url)
	if err != nil {
		return volume.Refs{}, fmt.Errorf("%w: %w", errUnresolved, err)
	}
	refs, err := h.Volume.ListRefs(ctx, volume.ListRefsRequest{
		Repo: repo, URL: from.url, Auth: auth, Foreign: from.foreign, Limiter: job.limiter(from.credential),
	})
	return refs, h.afterRefusal(from.credential, auth, err)
}

// missing returns the changes that bring the volume and the apps up to date with the remote's refs, and the
// obsolete fields of the state. admitted is the watch whose credential the remote accepted.
func (h *Handlers) missing(
	ctx context.Context, job Job, watches []watch.Watch, admitted watch.Watch, refs volume.Refs,
) (Outcome, error) {
	published, cloned, err := h.Volume.Published(job.Change.Repo)
	if err != nil {
		return Outcome{}, err
	}
	compared, err := h.comparedViews(ctx, job.Change.Repo, job.Known)
	if err != nil {
		return Outcome{}, err
	}
	listed, err := h.Volume.ListedRefs(job.Change.Repo)
	if err != nil {
		return Outcome{}, err
	}
	p := polled{
		h: h, job: job, watches: watches, refs: refs, known: job.Known, published: published, cloned: cloned,
		compared: compared,
		listed:   listed, now: time.Now(),
		wanted: map[events.Ref]bool{},
	}
	if err := p.requestSyncs(); err != nil {
		return Outcome{}, err
	}
	if err := p.storeListed(ctx); err != nil {
		return Outcome{}, err
	}
	if job.Change.App != "" {
		return p.leftOut(Outcome{Changes: p.changes}), nil
	}
	if err := p.requestRemovals(admitted); err != nil {
		return Outcome{}, err
	}
	return p.outcome(ctx)
}

// nextID returns the ID of the next change. It is the same on every attempt at the same entry.
func nextID(job Job, changes []events.Change) string {
	return fmt.Sprintf("%s%s/%d", pollID, job.Entry, len(changes)+1)
}

// commit returns the commit of a ref, and whether the remote has the ref. A commit is not listed: only a sync
// shows whether the remote has it.
func (p *polled) commit(ref events.Ref) (string, bool) {
	if commit := ref.Commit(); commit != "" {
		return commit, true
	}
	commit, ok := p.refs.Commits[ref.String()]
	return commit, ok
}
