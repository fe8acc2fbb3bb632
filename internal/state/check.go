package state

import (
	"cmp"
	"slices"
	"time"

	"lockstep/events"
)

// Check is the last check of a ref's commit by the rules of its watches.
type Check struct {
	Ref      string       `json:"ref"`
	Commit   string       `json:"commit"`
	At       time.Time    `json:"at"`
	Class    events.Class `json:"class,omitempty"`  // why the commit is not published; "" if it may be
	Reason   string       `json:"reason,omitempty"` // the error, if Class is set
	App      string       `json:"app,omitempty"`    // the app whose watch refuses the commit
	Forced   bool         `json:"forced,omitempty"` // the commit does not descend from one that was published
	Verdicts []Verdict    `json:"verdicts,omitempty"`

	Rules string   `json:"rules,omitempty"` // hash of the rules and of the keys
	Told  []string `json:"told,omitempty"`  // apps that got the failed result
}

// Verdict is a verification with the keys that some apps trust.
type Verdict struct {
	Keys string   `json:"keys"`          // name of the credential
	All  bool     `json:"all,omitempty"` // all new commits were to be verified, not only the last one
	Apps []string `json:"apps"`
	events.Verification
}

// Same reports whether two checks had the same commit, rules and outcome.
func (c Check) Same(other Check) bool {
	return c.IsCurrent(other.Commit, other.Rules) && c.Class == other.Class
}

// IsCurrent reports whether the check is of a commit by these rules.
func (c Check) IsCurrent(commit, rules string) bool { return c.Commit == commit && c.Rules == rules }

// about implements [record].
func (c Check) about() (ref string, isListed bool) { return c.Ref, c.Class != "" }

const refusedField = "refused"

// checks lists those of refs that are refused.
var checks = records[Check]{"check:", refusedField}

// Check returns the last check of ref. It returns false if there is none.
func (r Repo) Check(ref events.Ref) (Check, bool) { return checks.of(r, ref.String()) }

// Checks returns the last checks of all refs, the refused ones first, then by ref.
func (r Repo) Checks() []Check {
	all := checks.all(r)
	slices.SortStableFunc(all, func(a, b Check) int { return cmp.Compare(min(len(b.Class), 1), min(len(a.Class), 1)) })
	return all
}

// CheckFields returns the fields to set and to drop after a check of ref. check is nil if no rules apply to
// it any more.
func (r Repo) CheckFields(ref events.Ref, check *Check) (fields map[string]string, drop []string) {
	return checks.set(r, ref, check)
}
