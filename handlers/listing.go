package handlers

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Which branches a pattern keeps depends on when they have changed. The volume has both sources of that: the refs
// that the last poll has listed, each with the time at which its commit has changed, and the time at which a later
// commit was published. A branch that a webhook announces changes now, so it is kept. If there are too many then, its
// sync requests a poll, which removes others.

// offer returns what the remote has to publish. A tag that was found to be of a tree or a blob is nothing of that.
func (p *polled) offer() watch.Offer {
	changed := func(ref events.Ref) time.Time { return p.listing[ref].Changed }
	return watch.Offer{Default: p.refs.Default, Has: p.has, Refs: p.listAll, Changed: changed}
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

// has reports whether the remote has a ref that can be published.
func (p *polled) has(ref events.Ref) bool {
	commit, ok := p.commit(ref)
	last := p.listed[ref]
	return ok && !(last.Unfit && last.Commit == commit)
}

// leaveOut notes what the watches select, but do not keep.
func (p *polled) leaveOut() {
	unfit := namesOf(slices.Collect(maps.Keys(p.unfitRefs())))
	for i, w := range p.watches {
		p.noteLeftOut(w, state.BeyondMaxRefs, namesOf(p.names.Left[i]))
		isOther := func(name string) bool { return !w.Ref.MatchesName(name) }
		p.noteLeftOut(w, state.NoCommit, slices.DeleteFunc(slices.Sorted(slices.Values(unfit)), isOther))
		invalid := slices.DeleteFunc(slices.Sorted(slices.Values(p.refs.Invalid)), isOther)
		if w.Ref.IsDefault() && p.refs.InvalidDefault != "" {
			invalid = []string{p.refs.InvalidDefault}
		}
		p.noteLeftOut(w, state.InvalidName, invalid)
	}
}

func namesOf(refs []events.Ref) (names []string) {
	for _, ref := range refs {
		names = append(names, ref.String())
	}
	return names
}

func (p *polled) noteLeftOut(w watch.Watch, why state.LeftOutReason, refs []string) {
	if len(refs) == 0 {
		return
	}
	one := state.LeftOut{App: w.App, Ref: w.Ref.String(), Reason: why}
	if why == state.BeyondMaxRefs {
		one.MaxRefs = w.Limit()
	}
	p.leftOut = append(p.leftOut, state.NewLeftOut(one, refs))
}

// listAll lists all refs of the remote once there is a pattern. Those that no pattern matches yet do not
// count as changed when one does.
func (p *polled) listAll() []events.Ref {
	if p.listing != nil {
		return slices.Collect(maps.Keys(p.listing))
	}
	p.listing = map[events.Ref]volume.ListedRef{}
	isFirst := !slices.ContainsFunc(slices.Collect(maps.Values(p.listed)), isListing)
	for name := range p.refs.Commits {
		if ref := parsedRef(name); !ref.IsZero() && p.has(ref) {
			p.list(ref, isFirst)
		}
	}
	return slices.Collect(maps.Keys(p.listing))
}

// isListing reports whether a listed ref is that of a remote's list, which is stored for patterns.
func isListing(one volume.ListedRef) bool { return one.Commit != "" && !one.Unfit }

// list records that the remote has a ref, and since when at this commit. One that was changed and changed
// back between two polls counts as unchanged.
func (p *polled) list(ref events.Ref, isFirst bool) {
	one := volume.ListedRef{Commit: p.refs.Commits[ref.String()], Changed: p.now}
	last, wasListed := p.listed[ref]
	switch {
	case wasListed && last.Commit == one.Commit:
		one.Changed = last.Changed
	case p.published.Commits[ref] == one.Commit:
		one.Changed = p.published.Changed[ref]
	case !isFirst:
		// It has changed since the last poll.
	case p.known.Head(ref) != "": // the volume is lost
		one.Changed = p.known.Synced()
	default:
		one.Changed = time.Time{}
	}
	p.listing[ref] = one
}

// unfitRefs returns the refs that the remote has at a tree or a blob, as far as a sync has found out. Those given by
// their hash, which the remote does not list, are forgotten with their watches.
func (p *polled) unfitRefs() map[events.Ref]volume.ListedRef {
	unfit := maps.Clone(p.listed)
	maps.DeleteFunc(unfit, func(ref events.Ref, last volume.ListedRef) bool {
		commit, there := p.commit(ref)
		names := func(w watch.Watch) bool { return w.Ref.Matches(ref) }
		return !there || !last.Unfit || last.Commit != commit ||
			ref.Commit() != "" && !slices.ContainsFunc(p.watches, names)
	})
	return unfit
}

// storeListed stores for the next poll, and for removals, what this one has listed and what the remote lacks. If the
// volume cannot be written, the poll goes on without: a power cut may lose them, too.
func (p *polled) storeListed(ctx context.Context) error {
	all := maps.Clone(p.listing)
	if all == nil && len(p.missing)+len(p.unfitRefs()) > 0 {
		all = map[events.Ref]volume.ListedRef{}
	}
	maps.Copy(all, p.missing)
	maps.Copy(all, p.unfitRefs())
	same := func(a, b volume.ListedRef) bool {
		return a.Commit == b.Commit && a.Unfit == b.Unfit && a.Changed.Equal(b.Changed)
	}
	if (all == nil) == (p.listed == nil) && maps.EqualFunc(all, p.listed, same) {
		return nil
	}
	err := p.h.Volume.SetListedRefs(ctx, p.job.Change.Repo, p.job.Fence, all)
	if events.ClassOf(err) == events.ClassVolume {
		cmp.Or(p.h.Log, slog.Default()).WarnContext(ctx, "listed refs not stored", "repo", p.job.Change.Repo.String(),
			"error", err)
		return nil
	}
	return err
}

// unfit returns the outcome of a sync of a ref that is at a tree or a blob, which cannot be published. Polls leave it
// out from now on, but not for a change that says nothing of what the ref names, or that no watch requested: there may be
// no poll to forget it.
func (h *Handlers) unfit(ctx context.Context, s syncing, at volume.SyncResult, cause error) (Outcome, error) {
	job := s.job
	listed, err := h.Volume.ListedRefs(job.Change.Repo)
	if err != nil {
		return Outcome{}, err
	}
	last, isOfRef := listed[at.Ref], job.Change.Watched && !pinsName(job.Change)
	if isOfRef && (!last.Unfit || last.Commit != at.After) {
		all := map[events.Ref]volume.ListedRef{}
		maps.Copy(all, listed)
		all[at.Ref] = volume.ListedRef{Commit: at.After, Changed: job.now(), Unfit: true}
		if err := h.Volume.SetListedRefs(ctx, job.Change.Repo, job.Fence, all); err != nil {
			return Outcome{}, err
		}
	}
	result := job.Result(events.ResultFailed)
	result.Ref, result.Class, result.Error = at.Ref, events.ClassOf(cause), oneLine(cause)
	outcome := Outcome{Result: result, State: state.FenceFields(result)}
	s.chain.settles(&outcome, job, "")
	if job.Change.Watched { // the watch may keep another ref instead
		outcome.Changes, err = pollAfter(job)
	}
	return outcome, err
}
