package handlers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/ext"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// admission asks the extensions what the tree of a commit is to have, and whether it may be published, and stores the
// answers. All apps of a ref share its published tree, so the strictest rule of any watch decides.
type admission struct {
	known   state.Repo
	watches []watch.Watch
	parts   []ext.Joined          // none unless one has joined: see [ext.Join]
	digests map[events.Ref]string // of rules, for isDue

	tip       volume.Tip // of the sync
	isDefault bool       // as Default of [volume.Candidate]
	published string     // commit published for its ref before
	rules     string     // digest of the rules for its ref; "" for none
	admitters []ext.Admitter
	checked   *state.Check // last check of the tip; nil if it has no rules
}

func (h *Handlers) admission(s ext.Sync) *admission {
	s.Asked = h.Volume.Asked
	parts := ext.Join(h.Extensions, s)
	return &admission{known: s.Known, watches: s.Watches, parts: parts, digests: map[events.Ref]string{}}
}

// fill adds to a request for an app what extensions put into the tree of a ref.
func (a *admission) fill(req *volume.SyncRequest, app string, ref events.Ref, isDefault bool) error {
	for _, p := range a.parts {
		if filler, ok := p.Part.(ext.Filler); ok {
			if err := filler.Fill(req, app, ref, isDefault); err != nil {
				return err
			}
		}
	}
	return nil
}

// isFilled reports for a poll whether the published tree of a ref has what extensions put into it for a watch.
func (a *admission) isFilled(w watch.Watch, ref events.Ref, isDefault bool) bool {
	return !slices.ContainsFunc(a.parts, func(p ext.Joined) bool {
		filler, ok := p.Part.(ext.Filler)
		return ok && !filler.IsFilled(w, ref, isDefault)
	})
}

// depth returns the depth that a sync needs: the apps share the store, so one app's depth must not limit what is
// checked for another.
func (a *admission) depth(wanted events.Depth) events.Depth {
	for _, w := range a.watches {
		if a.hasRules(w) && !wanted.Covers(w.Depth) {
			wanted = w.Depth
		}
	}
	return wanted
}

// hasRules reports whether a watch has options of an extension that may refuse commits.
func (a *admission) hasRules(w watch.Watch) bool {
	return slices.ContainsFunc(a.parts, func(p ext.Joined) bool {
		_, admits := p.Part.(ext.Admitter)
		return admits && w.Options[p.Name] != nil
	})
}

// rulesOf returns the extensions that have rules for a ref, and a digest of the rules.
func (a *admission) rulesOf(ref events.Ref, isDefault bool) (digest string, admitters []ext.Admitter, err error) {
	var digests []string
	for _, p := range a.parts {
		admitter, ok := p.Part.(ext.Admitter)
		if !ok {
			continue
		}
		rules, err := admitter.Rules(ref, isDefault)
		if err != nil {
			return "", nil, err
		}
		if rules != "" {
			digests, admitters = append(digests, p.Name+" "+rules), append(admitters, admitter)
		}
	}
	return strings.Join(digests, " "), admitters, nil
}

// checks returns [volume.SyncRequest.Check].
func (a *admission) checks() func(volume.Tip, bool) volume.Check {
	if len(a.parts) == 0 {
		return nil
	}
	return a.checkOf
}

// checkOf returns the check of a ref's commit. It is nil for a commit that was admitted by the same rules before, but
// for one of a branch that has become the default branch again.
func (a *admission) checkOf(tip volume.Tip, isDefault bool) volume.Check {
	a.tip, a.isDefault, a.published, a.checked = tip, isDefault, "", nil
	var err error
	if a.rules, a.admitters, err = a.rulesOf(tip.Ref, isDefault); err != nil {
		return func(context.Context, volume.Candidate) error { return err }
	}
	if a.rules == "" {
		return nil
	}
	isNew := isDefault && a.known.Default() != tip.Ref.String()
	if last, ok := a.known.Check(tip.Ref); ok && !isNew && last.IsCurrent(tip.Commit, a.rules) && last.Class == "" {
		a.checked = &last
		return nil
	}
	return a.check
}

// check asks the extensions whether a commit may be published.
func (a *admission) check(ctx context.Context, c volume.Candidate) error {
	a.published = c.Published
	checked := &state.Check{Ref: c.Ref.String(), Commit: c.Commit, Rules: a.rules, At: time.Now().UTC()}
	since := c.Since
	c.Since = func(ctx context.Context, older string) (volume.History, error) {
		history, err := since(ctx, older)
		checked.Forced = checked.Forced || history.Rewound
		return history, err
	}
	if _, err := c.Since(ctx, c.Published); err != nil {
		return err
	}
	for _, admitter := range a.admitters {
		verdicts, err := admitter.Admit(ctx, c)
		checked.Verdicts = append(checked.Verdicts, verdicts...)
		if refusal, refused := errors.AsType[*ext.Refusal](err); refused {
			checked.Class, checked.Reason, checked.App = events.ClassRefused, refusal.Reason, refusal.App
			a.checked = checked
			return events.Errorf(events.Permanent, checked.Class, "%w", refusal)
		}
		if err != nil {
			return err
		}
	}
	a.checked = checked
	return nil
}

// refusal returns the outcome of a sync that was refused, or false if err has another cause.
func (a *admission) refusal(job Job, err error) (Outcome, bool) {
	if a.checked == nil || a.checked.Class == "" || events.ClassOf(err) != a.checked.Class {
		return Outcome{}, false
	}
	if last, ok := a.known.Check(a.tip.Ref); ok && last.Same(*a.checked) {
		a.checked.Told = last.Told
	}
	if app := job.Change.App; !slices.Contains(a.checked.Told, app) {
		a.checked.Told = append(slices.Clone(a.checked.Told), app)
	}
	result := job.Result(events.ResultFailed)
	result.Ref, result.Class, result.Error, result.Forced = a.tip.Ref, a.checked.Class, oneLine(err), a.checked.Forced
	a.describe(&result)
	fields, drop := a.fields(volume.Tip{Ref: a.tip.Ref, Commit: a.published})
	maps.Copy(fields, state.FenceFields(result))
	return Outcome{Result: result, State: fields, Drop: drop}, true
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// describe adds what the check found to a result.
func (a *admission) describe(r *events.Result) {
	if a.checked == nil {
		return
	}
	for _, p := range a.parts {
		if describer, ok := p.Part.(ext.Describer); ok {
			describer.Describe(r, *a.checked)
		}
	}
}

// fields returns the state to store and to drop after a sync. published is the commit that its ref is published at now.
func (a *admission) fields(published volume.Tip) (fields map[string]string, drop []string) {
	fields, drop = a.known.CheckFields(published.Ref, a.checked)
	for _, p := range a.parts {
		recorder, ok := p.Part.(ext.Recorder)
		if !ok {
			continue
		}
		for name, value := range recorder.Record(published, a.isDefault, a.checked != nil && a.checked.Class != "") {
			fields[state.ExtensionField(p.Name, name)] = value
		}
	}
	return fields, append(drop, a.outdated()...)
}

// outdated returns the names of the fields of extensions that no watch needs any more.
func (a *admission) outdated() (names []string) {
	for _, p := range a.parts {
		if recorder, ok := p.Part.(ext.Recorder); ok {
			for _, name := range recorder.Outdated() {
				names = append(names, state.ExtensionField(p.Name, name))
			}
		}
	}
	return names
}

// kept returns the fields of extensions that outlive the clone.
func (a *admission) kept() map[string]string {
	fields := map[string]string{}
	for _, p := range a.parts {
		for name, value := range a.known.ExtensionFields(p.Name) {
			fields[state.ExtensionField(p.Name, name)] = value
		}
	}
	for _, name := range a.outdated() {
		delete(fields, name)
	}
	return fields
}

// isDue decides for a poll whether a watch needs a sync of a ref, which is at commit, because of the rules of watches.
// A refused commit is not synced again, once the app was told, before the ref or the rules change. decided is false if
// the rules do not matter. Polls compare commits: only a webhook announces that a tag of the same commit was replaced.
func (a *admission) isDue(w watch.Watch, ref events.Ref, isDefault bool, commit string) (due, decided bool, err error) {
	last, wasChecked := a.known.Check(ref)
	if len(a.parts) == 0 && !wasChecked {
		return false, false, nil
	}
	rules, ok := a.digests[ref]
	if !ok {
		if rules, _, err = a.rulesOf(ref, isDefault); err != nil {
			return false, false, err
		}
		a.digests[ref] = rules
	}
	isCurrent := wasChecked && last.IsCurrent(commit, rules)
	switch {
	case rules == "": // the last rule is gone
		return true, wasChecked, nil
	case isCurrent && last.Class != "":
		return !slices.Contains(last.Told, w.App), true, nil
	case !isCurrent && a.hasRules(w):
		return true, true, nil
	}
	return false, false, nil
}
