package handlers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// What is published of a watched repository is decided by [watch.NamesOf]. This file decides which of the published
// names go, and which apps are told. A poll that lists the remote's refs does it under the lease, and so does a
// removal that a webhook announces:
//
//	a ref that no watch keeps, and that only watches   goes: a watch was removed, or a pattern keeps others. If no
//	have requested                                     watch selects it, it is the same whether the remote has it
//	a ref that no watch keeps, requested by hand or    stays, as long as the remote has it
//	by nobody knows whom
//	a ref that the remote lacks, or that is not at a   goes once it was so at two looks ten minutes apart, as a replica
//	commit any more                                    may lag, or at the first if its deletion was announced
//	the ref of the plain name, while another default   stays until the sync of that one replaces it
//	branch is kept
//	the plain name alone, if no watch keeps the        goes after two looks, once its ref has a name of its own
//	default branch any more, but the former one
//
// Each app that has received a ref that is gone, and that still watches it, gets a removed result. What the app has
// received is removed from the state in the step that settles the result: a worker that dies before that repeats it.

// missingFor is the time between two looks that must both miss a ref.
const missingFor = 10 * time.Minute

// A poll removes at most maxLeaving refs, and none after it tells maxTold apps, as one script settles all of it. It
// requests another poll for the rest.
const (
	maxLeaving = 100
	maxTold    = 1000
)

// leaving returns the refs to remove. It records in p.missing which ones the remote lacks, and since when: also those
// that go, for a worker that repeats this.
func (p *polled) leaving() (refs []events.Ref) {
	for _, ref := range p.candidates() {
		isPlain := ref == p.published.Plain
		isPublished := p.published.Commits[ref] != "" || p.published.Damaged[ref]
		lacks := !p.has(ref) || isPlain && p.names.Plain.IsZero() && p.watchesDefault()
		isGone := lacks && p.isGone(ref)
		isFollowed := slices.ContainsFunc(p.watches, func(w watch.Watch) bool {
			return w.Selects(ref, isPlain || p.known.Default() == ref.String())
		})
		isByHand := isPublished && !p.known.OnlyWatched(ref)
		switch {
		case p.names.Wanted[ref], isPlain && !p.names.Plain.IsZero():
		case lacks && !isGone && (isByHand || isFollowed):
			p.waits = true
		case !lacks && isByHand:
		case len(refs) == maxLeaving:
			p.unfinished = true
		default:
			refs = append(refs, ref)
		}
	}
	return refs
}

// candidates returns the refs that are published, or that the state names, by name.
func (p *polled) candidates() []events.Ref {
	all := map[events.Ref]bool{}
	for ref := range p.published.Commits {
		all[ref] = true
	}
	for ref := range p.published.Damaged {
		all[ref] = true
	}
	for name := range p.known.Heads() {
		all[parsedRef(name)] = true
	}
	for _, name := range p.known.WatchedRefs() { // a sync may have failed before it published the ref
		all[parsedRef(name)] = true
	}
	delete(all, events.Ref{})
	return slices.SortedFunc(maps.Keys(all), func(a, b events.Ref) int { return cmp.Compare(a.String(), b.String()) })
}

// plain returns the ref of the plain name, also if that has gone and a worker died before it settled.
func (p *polled) plain() events.Ref { return cmp.Or(p.published.Plain, parsedRef(p.known.Default())) }

// leavesPlain reports whether the plain name goes, but not its ref.
func (p *polled) leavesPlain() bool {
	plain := p.plain()
	if plain.IsZero() || !p.names.Plain.IsZero() || !p.names.Wanted[plain] || !p.known.OnlyWatched(plain) {
		return false
	}
	return p.isGone(events.Ref{}) && p.published.Named[plain]
}

// isGone reports whether the remote has lacked a ref for long enough. The zero ref is the plain name.
func (p *polled) isGone(ref events.Ref) bool {
	since := p.now
	if last, was := p.listed[ref]; was && !isListing(last) {
		since = last.Changed
	}
	if !ref.IsZero() && ref == p.announced {
		since = p.now.Add(-missingFor)
	}
	p.missing[ref] = volume.ListedRef{Changed: since}
	return p.now.Sub(since) >= missingFor
}

func (p *polled) watchesDefault() bool {
	return slices.ContainsFunc(p.watches, func(w watch.Watch) bool { return w.Ref.IsDefault() })
}

// remove removes what leaves from the volume, and notes which apps are told.
func (p *polled) remove(ctx context.Context) error {
	plain := p.plain()
	for _, ref := range p.leaving() {
		if len(p.told) >= maxTold {
			p.unfinished = true
			break
		}
		if p.published.Commits[ref] != "" || p.published.Damaged[ref] {
			if err := p.removeName(ctx, ref); err != nil {
				return err
			}
		}
		isPlain := ref == plain
		// A worker that died may have published another default branch, which is gone too, without telling the apps.
		wasPlain := p.names.Plain.IsZero() && p.known.Default() == ref.String()
		mayBePlain := isPlain || plain.IsZero() || wasPlain
		p.told = append(p.told, removals(p.job, p.known, p.watches, ref, isPlain, mayBePlain)...)
		p.drop = append(p.drop, p.known.FieldsOf(ref)...)
		delete(p.published.Commits, ref)
		delete(p.published.Damaged, ref)
	}
	if !p.leavesPlain() {
		return nil
	}
	byDefault := slices.DeleteFunc(slices.Clone(p.watches), func(w watch.Watch) bool { return w.Ref.Matches(plain) })
	for _, told := range removals(p.job, p.known, byDefault, plain, true, true) { // others still have the ref under its own name
		p.told = append(p.told, told)
		p.drop = append(p.drop, p.known.GivenFields(told.App, plain)...)
	}
	p.drop = append(p.drop, state.DefaultField) // or its removal would be told later as that of the plain name
	return p.removeName(ctx, events.Ref{})
}

func (p *polled) removeName(ctx context.Context, ref events.Ref) error {
	_, err := p.h.Volume.RemoveRef(ctx, volume.RemoveRequest{
		Repo: p.job.Change.Repo, Ref: ref, Fence: p.job.Fence, Confirm: p.job.Confirm, Force: true, Plain: true,
	})
	return err
}

// removals returns a result for each app that has received ref, or any ref if that is zero, and that still watches it.
// isPlain says that the plain name was published for it, which watches of the default branch follow; mayBePlain that it
// may have been.
func removals(
	job Job, known state.Repo, watches []watch.Watch, ref events.Ref, isPlain, mayBePlain bool,
) (told []events.Result) {
	done := map[string]bool{"": true}
	for _, given := range known.AllGiven() {
		if done[given.App] || !ref.IsZero() && given.Ref != ref.String() {
			continue
		}
		hasName := slices.ContainsFunc(watches, func(w watch.Watch) bool {
			return w.App == given.App && w.Ref.Matches(ref)
		})
		done[given.App] = hasName || slices.ContainsFunc(watches, func(w watch.Watch) bool {
			return w.App == given.App && (ref.IsZero() || mayBePlain && w.Ref.IsDefault())
		})
		if !done[given.App] {
			continue
		}
		result := job.Result(events.ResultRemoved)
		result.ID, result.App, result.Ref, result.Deliveries = result.ID+"/"+ref.String()+"/"+given.App, given.App, ref, nil
		if result.Path = job.Change.Repo.String(); hasName && !isPlain && !ref.IsZero() {
			result.Path += "@" + ref.Suffix()
		}
		told = append(told, result)
	}
	return told
}

func parsedRef(name string) events.Ref {
	ref, err := events.ParseRef(name)
	if err != nil {
		return events.Ref{}
	}
	return ref
}
