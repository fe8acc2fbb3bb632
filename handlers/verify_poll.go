package handlers

import (
	"slices"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// recheck decides for a poll which refs to verify again by the rules of watches. A refused commit is not
// synced again before the ref, the rules or the keys change. Polls compare commits: only a webhook announces
// that a tag of the same commit was re-signed.
type recheck struct {
	h       *Handlers
	watches []watch.Watch // those with rules
	known   state.Repo
	refs    volume.Refs
	rules   map[events.Ref]rules
}

func (h *Handlers) newRecheck(watches []watch.Watch, known state.Repo, refs volume.Refs) *recheck {
	watches = slices.DeleteFunc(slices.Clone(watches), func(w watch.Watch) bool { return !hasRules(w) })
	return &recheck{h, watches, known, refs, map[events.Ref]rules{}}
}

// decide returns whether a watch of ref, which is at commit, needs a sync. decided is false if no rules apply.
func (r *recheck) decide(w watch.Watch, ref events.Ref, commit string) (needed, decided bool, err error) {
	last, wasChecked := r.known.Check(ref)
	if len(r.watches) == 0 && !wasChecked {
		return false, false, nil
	}
	of, ok := r.rules[ref]
	if !ok {
		if of, err = r.h.rulesOf(r.watches, ref, ref == r.refs.Default); err != nil {
			return false, false, err
		}
		r.rules[ref] = of
	}
	isCurrent := wasChecked && last.Commit == commit && last.Rules == of.digest
	switch {
	case of.digest == "":
		return true, wasChecked, nil // the last rule is gone
	case isCurrent && last.Class != "":
		return !slices.Contains(last.Told, w.App), true, nil
	case !isCurrent && hasRules(w):
		return true, true, nil
	}
	return false, false, nil
}
