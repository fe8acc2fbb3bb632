package handlers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/git/signature"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// The cost of one verification is bounded: beyond these limits, older commits are not verified.
const (
	maxVerified      = 1000
	maxVerifiedBytes = 64 << 20
)

func hasRules(w watch.Watch) bool { return w.Verify != watch.VerifyOff || w.NoRewind }

// verifiesAll reports whether all new commits are verified, not only the last one.
func verifiesAll(w watch.Watch) bool { return !events.Depth(1).Covers(w.Depth) }

// governs reports whether the watch's rules apply to a ref.
func governs(w watch.Watch, ref events.Ref, isDefault bool) bool {
	return hasRules(w) && selects(w, ref, isDefault)
}

// rules are the requirements of the watches of a ref. All apps share its published tree, so the strictest one decides.
type rules struct {
	watches []watch.Watch
	keys    map[string]signature.Files // by name
	invalid map[string]string          // why keys cannot be used, by name
	digest  string                     // of the demands and keys; "" without any
}

// rulesOf returns the rules for a ref. It reads keys only if there are some.
func (h *Handlers) rulesOf(watches []watch.Watch, ref events.Ref, isDefault bool) (rules, error) {
	r := rules{keys: map[string]signature.Files{}, invalid: map[string]string{}}
	for _, w := range watches {
		if governs(w, ref, isDefault) {
			r.watches = append(r.watches, w)
		}
	}
	if len(r.watches) == 0 {
		return r, nil
	}
	for _, w := range r.watches {
		if w.Verify == watch.VerifyOff || r.has(w.VerifyKeys) {
			continue
		}
		keys, err := h.Credentials.VerificationKeys(w.VerifyKeys)
		switch {
		case err == nil:
			r.keys[w.VerifyKeys] = keys
		case events.DispositionOf(err) == events.Permanent:
			r.invalid[w.VerifyKeys] = err.Error()
		default:
			return rules{}, err
		}
	}
	slices.SortFunc(r.watches, func(a, b watch.Watch) int {
		return cmp.Or(-cmp.Compare(a.Verify, b.Verify), cmp.Compare(a.App, b.App), cmp.Compare(a.VerifyKeys, b.VerifyKeys))
	})
	r.digest = r.hash()
	return r, nil
}

func (r rules) has(keys string) bool {
	_, valid := r.keys[keys]
	return valid || r.invalid[keys] != ""
}

func (r rules) hash() string {
	sum := sha256.New()
	for _, w := range r.watches {
		fmt.Fprintf(sum, "%q %s %q %v %v\n", w.App, w.Verify, w.VerifyKeys, w.NoRewind, events.Depth(1).Covers(w.Depth))
	}
	for _, name := range slices.Sorted(maps.Keys(r.keys)) {
		fmt.Fprintf(sum, "%q %q\n", name, r.keys[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.invalid)) {
		fmt.Fprintf(sum, "%q %q\n", name, r.invalid[name])
	}
	return hex.EncodeToString(sum.Sum(nil)[:12])
}

// inspection checks the commit of one sync.
type inspection struct {
	h       *Handlers
	job     Job
	watches []watch.Watch // those with rules
	known   state.Repo

	err     error        // of reading keys
	rules   rules        // of the ref
	checked *state.Check // the outcome; nil if the ref has no rules
}

// inspect returns the inspection of a sync, or nil if no watch has rules.
func (h *Handlers) inspect(job Job, watches []watch.Watch, known state.Repo) *inspection {
	watches = slices.DeleteFunc(slices.Clone(watches), func(w watch.Watch) bool { return !hasRules(w) })
	if len(watches) == 0 {
		return nil
	}
	return &inspection{h: h, job: job, watches: watches, known: known}
}

// depth returns the history that a sync needs: the apps share the store, so one app's depth must not limit
// what is checked for another.
func (i *inspection) depth(wanted events.Depth) events.Depth {
	if i == nil {
		return wanted
	}
	for _, w := range i.watches {
		if !wanted.Covers(w.Depth) {
			wanted = w.Depth
		}
	}
	return wanted
}

// checkOf returns the check of a ref's commit. It is nil for a commit that was verified before, by the same rules.
func (i *inspection) checkOf(tip volume.Tip, isDefault bool) volume.Check {
	i.checked = nil
	if i.rules, i.err = i.h.rulesOf(i.watches, tip.Ref, isDefault); i.err != nil {
		return func(context.Context, volume.Candidate) error { return i.err }
	}
	if i.rules.digest == "" {
		return nil
	}
	if last, ok := i.known.Check(tip.Ref); ok && last.Commit == tip.Commit && last.Rules == i.rules.digest &&
		last.Class == "" {
		i.checked = &last
		return nil
	}
	return i.check
}

// check verifies a commit, and refuses it if a watch demands that.
func (i *inspection) check(ctx context.Context, c volume.Candidate) error {
	i.checked = &state.Check{
		Ref: c.Ref.String(), Commit: c.Commit, Rules: i.rules.digest, At: time.Now().UTC(), Forced: c.Rewound,
	}
	for _, w := range i.rules.watches {
		if w.NoRewind && (c.Rewound || c.Unknown) {
			return i.refuse(events.ClassRefused, rewindText(w, c))
		}
	}
	for _, w := range i.rules.watches {
		if w.Verify == watch.VerifyOff {
			continue
		}
		v, err := i.verdictOf(ctx, w, c)
		if err != nil {
			i.checked = nil
			return err
		}
		if w.Verify == watch.VerifyRequire && !v.Verified && i.checked.Class == "" {
			i.checked.Class, i.checked.App = events.ClassRefused, w.App
			i.checked.Reason = fmt.Sprintf("%s %.12s of %s is not verified, which app %s requires: %s; what is published stays",
				v.Object, v.ID, c.Ref, w.App, v.Reason)
		}
	}
	if i.checked.Class != "" {
		return i.refuse(i.checked.Class, i.checked.Reason)
	}
	return nil
}

func (i *inspection) refuse(class events.Class, reason string) error {
	i.checked.Class, i.checked.Reason = class, reason
	return events.Errorf(events.Permanent, class, "%s", reason)
}

func rewindText(w watch.Watch, c volume.Candidate) string {
	if c.Rewound {
		return fmt.Sprintf("%s was rewritten: commit %.12s does not descend from the published %.12s, "+
			"and app %s refuses that (no_rewind); what is published stays",
			c.Ref, c.Commit, c.Published, w.App)
	}
	return fmt.Sprintf("the history of %s does not reach from commit %.12s to the published %.12s, so it may have "+
		"been rewritten, which app %s refuses (no_rewind); what is published stays. Watch with depth full", c.Ref,
		c.Commit, c.Published, w.App)
}

// verdictOf returns the verdict by a watch's keys. Watches with the same keys share it.
func (i *inspection) verdictOf(ctx context.Context, w watch.Watch, c volume.Candidate) (events.Verification, error) {
	all := verifiesAll(w)
	for n, v := range i.checked.Verdicts {
		if v.Keys == w.VerifyKeys && v.All == all {
			i.checked.Verdicts[n].Apps = append(v.Apps, w.App)
			return v.Verification, nil
		}
	}
	v, err := i.verify(ctx, w.VerifyKeys, all, c)
	if err != nil {
		return v, err
	}
	i.checked.Verdicts = append(i.checked.Verdicts, state.Verdict{
		Keys: w.VerifyKeys, All: all, Apps: []string{w.App}, Verification: v,
	})
	return v, nil
}

// verify verifies the tag or commit that a ref names and, if all is set and it is a commit, the other new commits.
func (i *inspection) verify(
	ctx context.Context, name string, all bool, c volume.Candidate,
) (events.Verification, error) {
	v := events.Verification{Object: "commit", ID: c.Object}
	if v.Reason = i.rules.invalid[name]; v.Reason != "" {
		return v, nil
	}
	keys, err := signature.ParseKeys(i.rules.keys[name])
	if err != nil {
		v.Reason = fmt.Sprintf("the keys of credential %q cannot be used: %v", name, err)
		return v, nil
	}
	now, read := time.Now(), 0
	parse := func(id string) (signature.Object, error) {
		kind, content, err := c.Read(id)
		if err != nil {
			return signature.Object{}, err
		}
		read += len(content)
		format := signature.SHA1
		if len(id) == 2*sha256.Size {
			format = signature.SHA256
		}
		o, err := signature.Parse(signature.Kind(kind), content, format)
		if err != nil {
			return o, events.Errorf(events.Permanent, events.ClassNoRef, "%.12s: %w", id, err)
		}
		return o, nil
	}
	verdict := func(id string) (signature.Object, signature.Verdict, error) {
		o, err := parse(id)
		if err != nil {
			return o, signature.Verdict{}, err
		}
		return o, keys.Verify(o, now), nil
	}
	object, first, err := verdict(c.Object)
	if err != nil {
		return v, err
	}
	v.Object, v.By, v.Key, v.Format, v.Reason = string(object.Kind), first.By, first.Key, first.Format, first.Reason
	if object.Kind == signature.Tag {
		target, err := peel(object, parse)
		if err != nil {
			return v, err
		}
		if reason := wrongTag(object, target, c.Tip); v.Reason == "" && reason != "" {
			v.By, v.Key, v.Reason = "", "", reason
		}
		v.Verified = v.Reason == ""
		return v, nil
	}
	older := c.Commits[min(1, len(c.Commits)):]
	if v.Partial = c.Partial || !all && len(older) > 0; !all {
		older = nil
	}
	for v.Commits = 1; v.Reason == "" && v.Commits <= len(older); v.Commits++ {
		if v.Commits == maxVerified || read > maxVerifiedBytes {
			v.Partial = true
			break
		}
		if ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
		id := older[v.Commits-1]
		_, next, err := verdict(id)
		if err != nil {
			return v, err
		}
		if !next.Verified() {
			v.ID, v.By, v.Key, v.Format, v.Reason = id, "", "", next.Format, next.Reason
		}
	}
	if v.Verified = v.Reason == ""; !v.Verified {
		v.Commits, v.Partial = 0, false
	}
	return v, nil
}

// wrongTag returns why a tag, which finally points to target, is not that of a tip, or "".
func wrongTag(tag signature.Object, target string, tip volume.Tip) string {
	if target != tip.Commit { // the remote says which commit its tag is of
		return fmt.Sprintf("it is a tag of %.12s, not of commit %.12s", target, tip.Commit)
	}
	if name, isTag := strings.CutPrefix(tip.Ref.String(), "refs/tags/"); isTag && tag.Name != name {
		return fmt.Sprintf("it is the tag %.100q under another name", tag.Name)
	}
	return ""
}

// maxTags limits how many tags may point to each other.
const maxTags = 10

// peel returns the object that a tag finally points to.
func peel(tag signature.Object, parse func(id string) (signature.Object, error)) (target string, err error) {
	for range maxTags {
		next, err := parse(tag.Target)
		if err != nil || next.Kind != signature.Tag {
			return tag.Target, err
		}
		tag = next
	}
	return tag.Target, nil
}

// own returns the verdict for an app's results: by the strictest of its watches, or nil if none asks for one.
// Of several that require one, it is by one that is not satisfied.
func (i *inspection) own(app string) (own *events.Verification) {
	if i == nil || i.checked == nil {
		return nil
	}
	for _, w := range i.rules.watches { // the strictest first
		if w.App != app || w.Verify == watch.VerifyOff {
			continue
		}
		n := slices.IndexFunc(i.checked.Verdicts, func(v state.Verdict) bool {
			return v.Keys == w.VerifyKeys && v.All == verifiesAll(w)
		})
		if n < 0 {
			continue
		}
		if v := &i.checked.Verdicts[n].Verification; own == nil || w.Verify == watch.VerifyRequire && !v.Verified &&
			own.Verified {
			own = v
		}
	}
	return own
}

// refusal returns the outcome of a sync that was refused, or false if err has another cause.
func (i *inspection) refusal(err error) (Outcome, bool) {
	if i == nil || i.checked == nil || i.checked.Class == "" || events.ClassOf(err) != i.checked.Class {
		return Outcome{}, false
	}
	var told []string
	if last, ok := i.known.Check(i.ref()); ok && last.Same(*i.checked) {
		told = last.Told
	}
	app := i.job.Change.App
	if i.checked.Told = told; !slices.Contains(told, app) {
		i.checked.Told = append(told, app)
	}
	result := i.job.Result(events.ResultFailed)
	result.Ref, result.Class, result.Error, result.Forced = i.ref(), i.checked.Class, oneLine(err), i.checked.Forced
	result.Verification = i.own(cmp.Or(i.checked.App, app))
	fields, _ := i.fields(i.known, i.ref())
	maps.Copy(fields, state.FenceFields(result))
	return Outcome{Result: result, State: fields}, true
}

func (i *inspection) ref() events.Ref {
	ref, err := events.ParseRef(i.checked.Ref)
	if err != nil {
		return events.Ref{} // impossible: it is that of the candidate
	}
	return ref
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// fields returns the state to store and to drop after a check of ref.
func (i *inspection) fields(known state.Repo, ref events.Ref) (fields map[string]string, drop []string) {
	if i == nil {
		return known.CheckFields(ref, nil)
	}
	return known.CheckFields(ref, i.checked)
}

// checks returns the checks for a request.
func (i *inspection) checks() func(volume.Tip, bool) volume.Check {
	if i == nil {
		return nil
	}
	return i.checkOf
}
