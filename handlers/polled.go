package handlers

import (
	"context"
	"maps"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// polled compares the refs that a poll has listed with the volume and the state.
type polled struct {
	h         *Handlers
	job       Job
	watches   []watch.Watch
	refs      volume.Refs
	known     state.Repo
	published volume.Published
	cloned    bool
	compared  map[string]string // from comparedViews

	listed map[events.Ref]volume.ListedRef // by the last poll; nil if none has listed any
	now    time.Time

	wanted  map[events.Ref]bool             // refs that watches keep
	changes []events.Change                 // requested so far
	valid   []events.Ref                    // refs of the remote, for patterns
	listing map[events.Ref]volume.ListedRef // the same; nil without a pattern
	left    []state.LeftOut                 // and those that are not kept
}

// requestSyncs requests a sync for each watch and each of its refs that is out of date. A poll for one app
// requests those of its watches only.
func (p *polled) requestSyncs() error {
	recheck := p.h.newRecheck(p.watches, p.known, p.refs)
	for _, w := range p.watches {
		if w.Ref.IsDefault() { // it stays until the remote has another one
			p.wanted[p.published.Plain] = true
		}
		for _, ref := range p.pick(w) {
			p.wanted[ref] = true
			if p.job.Change.App != "" && p.job.Change.App != w.App {
				continue
			}
			needed, err := p.needsSync(recheck, w, ref)
			if err != nil {
				return err
			}
			if !needed {
				continue
			}
			if err := p.requestSync(w, ref); err != nil {
				return err
			}
		}
	}
	return nil
}

// needsSync reports whether the volume or the app of a watch is behind the ref, or its rules are to be checked again.
func (p *polled) needsSync(recheck *recheck, w watch.Watch, ref events.Ref) (bool, error) {
	commit, _ := p.commit(ref)
	needed, decided, err := recheck.decide(w, ref, commit)
	if err != nil || decided {
		return needed, err
	}
	isDefault := ref == p.refs.Default
	isCurrent := p.published.Commits[ref] == commit && (!isDefault || p.published.Plain == ref) &&
		p.known.Head(ref) == commit &&
		p.known.Given(w.App, ref) == commit && !p.known.Repeats(w.App, ref) && !p.known.Denied(w.App, w.Credential) &&
		p.published.LFS[ref].String() == lfsOf(p.watches, ref, isDefault).String() &&
		p.published.Submodules[ref] == submodulesOf(p.watches, ref, isDefault) && !p.published.Incomplete[ref] &&
		!p.h.missesCredential(p.watches, w, ref, isDefault, p.published.Missing[ref])
	if !isCurrent {
		return true, nil
	}
	return p.h.viewsAreDue(p.compared, p.watches, w, ref, isDefault, commit)
}

func (p *polled) requestSync(w watch.Watch, ref events.Ref) error {
	if w.Ref.IsDefault() {
		ref = events.Ref{}
	}
	return p.request(events.Change{
		Type: events.ChangePushed, Repo: w.Repo, URL: w.URL, Ref: ref, App: w.App, Credential: w.Credential, Depth: w.Depth,
		Watched: true, Foreign: w.Auto,
	})
}

// requestRemovals requests the removal of published refs that are gone from the remote, or no longer watched.
func (p *polled) requestRemovals(admitted watch.Watch) error {
	for _, ref := range slices.SortedFunc(maps.Keys(p.published.Commits), byName) {
		_, there := p.commit(ref)
		gone := !there && ref != p.published.Plain
		dropped := there && !p.wanted[ref] && p.known.OnlyWatched(ref)
		if !gone && !dropped {
			continue
		}
		err := p.request(events.Change{
			Type: events.ChangeRemoved, Repo: p.job.Change.Repo, URL: admitted.URL, Ref: ref,
			Credential: admitted.Credential, Foreign: admitted.Auto, Force: dropped,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *polled) request(change events.Change) error {
	change.ID, change.Source = nextID(p.job, p.changes), p.job.Change.Source
	change, err := events.NewChange(change)
	if err != nil {
		return err
	}
	p.changes = append(p.changes, change)
	return nil
}

// leftOut adds to an outcome what the patterns leave out.
func (p *polled) leftOut(outcome Outcome) Outcome {
	left, none := p.known.LeftOutFields(p.left)
	if outcome.State == nil {
		outcome.State = map[string]string{}
	}
	maps.Copy(outcome.State, left)
	outcome.Drop = append(outcome.Drop, none...)
	if p.known.IsZero() && len(left) > 0 {
		outcome.State["repo"] = p.job.Change.Repo.String()
	}
	for _, one := range p.left {
		outcome.Result.LeftOut += one.Count
	}
	return outcome
}

// outcome returns the requested changes, and the state without its obsolete fields.
func (p *polled) outcome(ctx context.Context) (Outcome, error) {
	outcome := Outcome{Changes: p.changes, Drop: unpublished(p.known, p.published, p.wanted)}
	checks, unchecked := p.known.KeepChecks(func(ref events.Ref) bool {
		_, there := p.commit(ref)
		return p.published.Commits[ref] != "" || p.published.Damaged[ref] || there && p.wanted[ref]
	})
	outcome.State, outcome.Drop = checks, append(outcome.Drop, unchecked...)
	outcome = p.leftOut(outcome)
	missing, had := p.known.KeepMissing(func(ref events.Ref) bool { return p.published.Commits[ref] != "" })
	maps.Copy(outcome.State, missing)
	outcome.Drop = append(outcome.Drop, had...)
	if !p.cloned && len(p.changes) == 0 {
		outcome.Drop = append(outcome.Drop, p.known.CloneFields()...)
	}
	var err error
	outcome.Views, err = p.h.forgottenViews(ctx, p.job.Change.Repo, p.compared, func(field string) bool {
		app, ref, err := state.ParseViewsField(field)
		isDefault := ref == p.refs.Default || ref == p.published.Plain
		views, _ := viewsOf(p.watches, app, ref, isDefault)
		return err == nil && views == nil || state.DropsViews(outcome.Drop, field)
	})
	return outcome, err
}
