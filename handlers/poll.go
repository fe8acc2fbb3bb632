package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"lockstep/events"
	"lockstep/internal/ext"
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
//	a published ref is gone, or   it is removed as names.go decides, and its apps are told
//	no watch keeps it
//	a watched ref has moved       a sync is requested for each app that watches it and has not received the commit
//	an app never received it, or  a sync is requested for that app
//	may not have
//	the credential of an app was  a sync is requested for that app
//	refused
//	other apps have other         one of them is tried too, at random, and a refusal is recorded
//	credentials
//	the volume differs            a sync is requested, also for what extensions put into trees that may be had now
//	a ref is in the state, but    it is removed from the state, and its apps are told: a removal whose worker died
//	not published
//	a ref is published, but not   it is added to the state: who has requested it is unknown, so it stays
//	in the state
//	a tag is of a tree or a blob  nothing, once a sync has found out, until the tag changes
//	there is neither a clone nor  the state forgets the clone, for the same reason
//	anything to sync
//	a watch's rules or their      a sync is requested, which checks the published commit again
//	keys have changed
//	the views of a watch have     a sync is requested, which compares the published commit again
//	changed, or lack trees        and publishes them
//	an app no longer has views    the state of these views is dropped
//	of a ref
//	an app watches nothing now    the state forgets what it was given; not for an app that also asked by hand
//	the remote redirects to       the move is requested, if a watch asks for it
//	another path, permanently
//	a commit was refused          nothing, until the ref, the rules or the keys change
//	there are no watches          nothing
//
// The announced deletion of a ref is such a poll, too: the ref need not be missing a second time.
//
// A poll for one app, after it has added a pattern, requests syncs for that app, and notes what patterns
// leave out; the rest waits for the next poll for all.
func (h *Handlers) Poll(ctx context.Context, job Job) (Outcome, error) {
	repo := job.Change.Repo
	watches, err := h.watches(ctx, repo)
	if err != nil {
		return Outcome{}, err
	}
	result, announced := job.Result(events.ResultPolled), events.Ref{}
	if job.Change.Type == events.ChangeRemoved {
		result.Type, announced = events.ResultRemoved, job.Change.Ref
	}
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
	if _, there := refs.Commits[announced.String()]; there {
		err := fmt.Errorf("remove %s: the remote still has %s; remove its watch, with lockstep watch rm", repo, announced)
		return Outcome{}, &events.Error{
			Disposition: events.Permanent, Scope: events.ScopeNone, Class: events.ClassConflict, Err: err,
		}
	}
	outcome, err := h.follow(ctx, job, watches, refs, announced)
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
	if job.Change.App == "" {
		gone := forgetApps(job.Known, watches)
		for _, name := range gone {
			delete(outcome.State, name) // it would be set after the drop
		}
		outcome.Drop = append(outcome.Drop, gone...)
	}
	outcome.Result = result
	if announced.IsZero() {
		left, expired := job.Known.AwaitedFields(job.now(), func(state.Announcement) bool { return false })
		maps.Copy(outcome.State, left)
		outcome.Drop = append(outcome.Drop, expired...)
		if job.Known.Path() != "" { // otherwise this would be all of its state
			maps.Copy(outcome.State, state.AnsweredFields(job.now()))
		}
	} else {
		supersedeByRemoval(&outcome, job)
	}
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
	var first, limited, refused error
	tried := map[source]bool{}
	for _, w := range watches {
		if tried[watched(w)] {
			continue
		}
		tried[watched(w)] = true
		own := events.Change{Type: events.ChangePushed, App: w.App, Credential: w.Credential}
		if t, waits := job.Known.Waits(own, job.now()); waits { // its credential is asked again then
			refused = cmp.Or(refused, waiting(job, t))
			continue
		}
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
		switch err = h.deny(ctx, job, watches, watched(w), err); {
		case events.ScopeOf(err) == events.ScopeUs:
			return w, volume.Refs{}, err
		case events.DispositionOf(err) == events.Contention:
			limited = cmp.Or(limited, err)
		}
		first = cmp.Or(first, err)
	}
	return watch.Watch{}, volume.Refs{}, cmp.Or(limited, refused, first)
}

// errUnresolved means that a credential cannot be used, as it is not configured for example.
var errUnresolved = errors.New("no credential")

func (h *Handlers) listRefs(
	ctx context.Context, job Job, repo events.RepoPath, from source,
) (volume.Refs, error) {
	auth, err := h.resolve(ctx, from.credential, from.url)
	if err != nil {
		return volume.Refs{}, fmt.Errorf("%w: %w", errUnresolved, err)
	}
	refs, err := h.Volume.ListRefs(ctx, volume.ListRefsRequest{
		Repo: repo, URL: from.url, Auth: auth, Foreign: from.foreign, Limiter: job.limiter(from.credential),
	})
	return refs, h.afterRefusal(from.credential, auth, err)
}

// follow brings the volume and the state of a watched repository to the refs that its remote has: it removes names, and
// requests syncs. announced is a ref whose deletion was announced, or zero.
func (h *Handlers) follow(
	ctx context.Context, job Job, watches []watch.Watch, refs volume.Refs, announced events.Ref,
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
		h: h, job: job, watches: watches, refs: refs, announced: announced, known: job.Known, published: published,
		cloned: cloned, compared: compared, listed: listed, now: job.now(), missing: map[events.Ref]volume.ListedRef{},
		admission: h.admission(ext.Sync{Known: job.Known, Watches: watches, Published: published}),
	}
	p.names = watch.NamesOf(watches, p.offer())
	p.leaveOut()
	if err := p.requestSyncs(); err != nil {
		return Outcome{}, err
	}
	if job.Change.App != "" {
		p.missing = maps.Clone(listed) // the next poll for all decides about these
		maps.DeleteFunc(p.missing, func(ref events.Ref, last volume.ListedRef) bool {
			return last.Commit != "" || p.has(ref)
		})
		return p.withLeftOut(Outcome{Changes: p.changes}), p.storeListed(ctx)
	}
	if err := p.remove(ctx); err != nil {
		return Outcome{}, err
	}
	if err := p.storeListed(ctx); err != nil {
		return Outcome{}, err
	}
	if p.unfinished {
		if err := p.request(events.Change{Type: events.ChangeDue, Repo: job.Change.Repo}); err != nil {
			return Outcome{}, err
		}
	}
	return p.outcome(ctx)
}

// nextID returns the ID of the next change. It is the same on every attempt at the same entry.
func nextID(job Job, changes []events.Change) string {
	return fmt.Sprintf("%s%s/%d", pollID, job.Entry, len(changes)+1)
}
