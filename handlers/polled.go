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

// polled compares the refs that a poll has listed with the volume and the state, and brings these to them.
type polled struct {
	h         *Handlers
	job       Job
	watches   []watch.Watch
	refs      volume.Refs
	announced events.Ref // its deletion was announced; zero for none
	known     state.Repo
	published volume.Published
	cloned    bool
	compared  map[string]string // from comparedViews
	admission *admission

	listed map[events.Ref]volume.ListedRef // by the last poll; nil if none has listed any
	now    time.Time

	names   watch.Names
	changes []events.Change                 // requested so far
	listing map[events.Ref]volume.ListedRef // refs of the remote, for patterns; nil without one
	missing map[events.Ref]volume.ListedRef // refs that the remote lacks
	leftOut []state.LeftOut

	told       []events.Result // removed results
	drop       []string        // fields of what was removed
	unfinished bool            // more is to be removed
	waits      bool            // something is missing, but not long enough
}

// requestSyncs requests a sync for each watch and each of its refs that is out of date. A poll for one app
// requests those of its watches only.
func (p *polled) requestSyncs() error {
	for i, w := range p.watches {
		if p.job.Change.App != "" && p.job.Change.App != w.App {
			continue
		}
		refused := p.known.IsRefused(w.App, w.Credential)
		for _, ref := range p.names.Kept[i] {
			needed, err := p.needsSync(w, ref)
			if err != nil {
				return err
			}
			if !needed && !refused {
				continue
			}
			refused = false // one sync tells whether the credential is accepted again
			if err := p.requestSync(w, ref); err != nil {
				return err
			}
		}
	}
	return nil
}

// needsSync reports whether the volume or the app of a watch is behind the ref, or its rules are to be checked again.
func (p *polled) needsSync(w watch.Watch, ref events.Ref) (bool, error) {
	commit, _ := p.commit(ref)
	isDefault := ref == p.refs.Default
	needed, decided, err := p.admission.isDue(w, ref, isDefault || ref == p.published.Default, commit)
	if err != nil || decided {
		return needed, err
	}
	isNamed := isDefault && p.published.Plain == ref || !isDefault && p.published.Named[ref]
	isCurrent := p.published.Commits[ref] == commit && isNamed &&
		p.known.Head(ref) == commit &&
		p.known.IsGiven(w.App, ref, p.published.Trees[ref]) &&
		!p.published.Incomplete[ref] && p.admission.isFilled(w, ref, isDefault)
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

func (p *polled) request(change events.Change) error {
	change.ID, change.Source = nextID(p.job, p.changes), p.job.Change.Source
	change, err := events.NewChange(change)
	if err != nil {
		return err
	}
	p.changes = append(p.changes, change)
	return nil
}

// withLeftOut adds to an outcome what the watches leave out.
func (p *polled) withLeftOut(outcome Outcome) Outcome {
	left, none := p.known.LeftOutFields(p.leftOut)
	if outcome.State == nil {
		outcome.State = map[string]string{}
	}
	maps.Copy(outcome.State, left)
	outcome.Drop = append(outcome.Drop, none...)
	if p.known.IsZero() && len(outcome.State) > 0 {
		outcome.State["repo"] = p.job.Change.Repo.String()
	}
	for _, one := range p.leftOut {
		outcome.Result.LeftOut += one.Count
	}
	return outcome
}

// outcome returns the requested changes, what apps are told, and the state as it is on the volume.
func (p *polled) outcome(ctx context.Context) (Outcome, error) {
	outcome := Outcome{Changes: p.changes, More: p.told, Drop: p.drop}
	kept, gone := p.known.KeepRecords(func(ref events.Ref) bool {
		return p.published.Commits[ref] != "" || p.published.Damaged[ref] || p.names.Wanted[ref] && p.has(ref)
	})
	outcome.State, outcome.Drop = kept, slices.Concat(outcome.Drop, gone, p.admission.outdated())
	for ref, commit := range p.published.Commits {
		if !p.names.Wanted[ref] {
			maps.Copy(outcome.State, p.known.FoundFields(ref, commit))
		}
	}
	p.repeatReplaced(outcome.State)
	outcome = p.withLeftOut(outcome)
	if !p.cloned && len(p.changes) == 0 && !p.waits {
		outcome.Drop = append(outcome.Drop, p.known.CloneFields()...)
	}
	p.forgetTroubles()
	var err error
	outcome.Views, err = p.h.forgottenViews(ctx, p.job.Change.Repo, p.compared, func(field string) bool {
		app, ref, err := state.ParseViewsField(field)
		isDefault := ref == p.refs.Default || ref == p.published.Plain
		views, _ := viewsOf(p.watches, app, ref, isDefault)
		return err == nil && views == nil || state.DropsViews(outcome.Drop, field)
	})
	return outcome, err
}

// repeatReplaced sets the fields by which the next results of refs list all of their files, if they had only the
// plain name before another default branch was published, and get a name of their own now.
func (p *polled) repeatReplaced(fields map[string]string) {
	for name := range p.known.Heads() {
		ref := parsedRef(name)
		isPublished := p.published.Commits[ref] != "" || p.published.Damaged[ref]
		if p.cloned && !isPublished && p.names.Wanted[ref] && p.known.Default() != name {
			maps.Copy(fields, p.known.RepeatFields(ref, func(string) bool { return true }))
		}
	}
}

// forgetTroubles forgets the troubles of changes that watches or webhooks have requested for refs that are not
// published any more, or whose announced commits were not there while nothing is behind now.
func (p *polled) forgetTroubles() {
	p.known.Forget(func(t state.Trouble) bool {
		ours := t.Watched || t.Operation == events.ChangeRemoved.Operation()
		if t.Scope != events.ScopeChange || t.IsOfPoll() || !ours {
			return false
		}
		ref := parsedRef(t.Ref)
		resolved := cmp.Or(ref, p.refs.Default)
		isDue := slices.ContainsFunc(p.changes, func(c events.Change) bool { return c.Ref == ref || c.Ref == resolved })
		if t.Class == events.ClassNoRef && p.names.Wanted[resolved] && p.has(resolved) && !isDue {
			return true
		}
		return !ref.IsZero() && !p.names.Wanted[ref] || ref.IsZero() && t.Watched && p.refs.Default.IsZero()
	})
}
