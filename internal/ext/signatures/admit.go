package signatures

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/ext"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// New returns the extension. It reads keys from credentials.
func New(credentials *credential.Store) ext.Extension {
	return ext.Extension{Name: Name, Join: func(s ext.Sync) ext.Part {
		return &part{
			credentials: credentials, last: s.Known.ExtensionFields(Name), keys: map[string]trusted{},
			watches: slices.DeleteFunc(slices.Clone(s.Watches), func(w watch.Watch) bool { return w.Options[Name] == nil }),
		}
	}}
}

// part checks the commit of one sync.
type part struct {
	credentials *credential.Store
	watches     []watch.Watch      // those that have rules
	last        map[string]string  // fields of the state
	keys        map[string]trusted // by name
	rules       []watch.Watch      // those whose rules apply to the ref that Rules was called for
	candidate   volume.Candidate   // last that Admit was called for
}

// Admit verifies a commit, and refuses it if a watch demands that.
func (p *part) Admit(ctx context.Context, c volume.Candidate) (verdicts []state.Verdict, err error) {
	p.candidate = c
	for _, w := range p.rules {
		if err := p.checkHistory(ctx, w, c); err != nil {
			return nil, err
		}
	}
	var refusal error
	var asked []question // of the verdicts
	for _, w := range p.rules {
		o := Of(w)
		if o.Verify == VerifyOff {
			continue
		}
		q := question{o.Keys, verifiesAll(w), cmp.Or(p.lastOf(w, c), c.Published), standing(w, c)}
		n := slices.Index(asked, q)
		if n < 0 {
			v, err := p.verify(ctx, q, c)
			if err != nil {
				return nil, err
			}
			n, asked = len(asked), append(asked, q)
			verdicts = append(verdicts, state.Verdict{Keys: q.keys, All: q.all, Verification: v})
		}
		verdicts[n].Apps = append(verdicts[n].Apps, w.App)
		if v := verdicts[n]; o.Verify == VerifyRequire && !v.Verified && refusal == nil {
			refusal = ext.Refusef(w.App, "%s %.12s of %s is not verified, which app %s requires: %s; what is published stays",
				v.Object, v.ID, c.Ref, w.App, v.Reason)
		}
	}
	return verdicts, refusal
}

// checkHistory refuses a commit that does not descend from the published one, or from the last one that was published.
func (p *part) checkHistory(ctx context.Context, w watch.Watch, c volume.Candidate) error {
	if !Of(w).NoRewind {
		return nil
	}
	for _, older := range []string{c.Published, p.lastOf(w, c)} {
		if older == "" {
			continue
		}
		ref, before := c.Ref.String()+" was rewritten", fmt.Sprintf("the published %.12s", older)
		if older != c.Published {
			ref, before = c.Ref.String(), fmt.Sprintf("%.12s, which was published before", older)
		}
		history, err := c.Since(ctx, older)
		switch {
		case err != nil:
			return err
		case history.Rewound:
			return ext.Refusef(w.App, "%s: commit %.12s does not descend from %s, and app %s refuses that (no_rewind); "+
				"what is published stays", ref, c.Commit, before, w.App)
		case history.Unknown:
			return ext.Refusef(w.App, "the history of %s does not reach from commit %.12s to %s, so it may have been "+
				"rewritten, which app %s refuses (no_rewind); what is published stays. Watch with depth full",
				c.Ref, c.Commit, before, w.App)
		}
	}
	return nil
}

// Describe implements [ext.Describer]. The verdict is by the strictest of the app's watches, or nil if none asks for
// one. Of several that require one, it is by one that is not satisfied. A refused commit has the verdict of the app
// that refuses it.
func (p *part) Describe(r *events.Result, c state.Check) {
	app := r.App
	if r.Type == events.ResultFailed {
		app = cmp.Or(c.App, app)
	}
	r.Verification = nil
	for _, w := range p.rules {
		o := Of(w)
		if w.App != app || o.Verify == VerifyOff {
			continue
		}
		for _, v := range c.Verdicts {
			isOf := v.Keys == o.Keys && v.All == verifiesAll(w) && slices.Contains(v.Apps, app)
			isWorse := r.Verification == nil || o.Verify == VerifyRequire && !v.Verified && r.Verification.Verified
			if isOf && isWorse {
				r.Verification = &v.Verification
			}
		}
	}
}
