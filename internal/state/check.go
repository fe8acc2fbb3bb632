package state

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
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

func checkField(ref events.Ref) string { return checkPrefix + ref.String() }

// checkPrefix begins the names of the fields with checks; refusedField lists the refs that are refused.
const (
	checkPrefix  = "check:"
	refusedField = "refused"
)

// Check returns the last check of ref. It returns false if there is none.
func (r Repo) Check(ref events.Ref) (Check, bool) { return parseCheck(r.fields[checkField(ref)]) }

func parseCheck(text string) (c Check, ok bool) {
	return c, text != "" && json.Unmarshal([]byte(text), &c) == nil
}

// Checks returns the last checks of all refs, the refused ones first, then by ref.
func (r Repo) Checks() []Check {
	var all []Check
	for name, text := range r.fields {
		if !strings.HasPrefix(name, checkPrefix) {
			continue
		}
		if c, ok := parseCheck(text); ok {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Check) int {
		return cmp.Or(cmp.Compare(min(len(b.Class), 1), min(len(a.Class), 1)), cmp.Compare(a.Ref, b.Ref))
	})
	return all
}

// CheckFields returns the fields to set and to drop after a check of ref. check is nil if no rules apply to
// it any more.
func (r Repo) CheckFields(ref events.Ref, check *Check) (fields map[string]string, drop []string) {
	fields = map[string]string{}
	isRefused := check != nil && check.Class != ""
	refused := slices.DeleteFunc(strings.Fields(r.fields[refusedField]), func(name string) bool {
		return name == ref.String()
	})
	if isRefused {
		refused = append(refused, ref.String())
		slices.Sort(refused)
	}
	if list := strings.Join(refused, " "); list != r.fields[refusedField] {
		fields[refusedField] = list
	}
	if check == nil {
		if _, ok := r.fields[checkField(ref)]; ok {
			drop = append(drop, checkField(ref))
		}
		return fields, drop
	}
	text, err := json.Marshal(check)
	if err == nil { // impossible otherwise
		fields[checkField(ref)] = string(text)
	}
	return fields, drop
}

// KeepChecks returns the fields to set and to drop so that only the checks of refs that keep accepts remain.
func (r Repo) KeepChecks(keep func(events.Ref) bool) (fields map[string]string, drop []string) {
	var refused []string
	for _, c := range r.Checks() {
		ref, err := events.ParseRef(c.Ref)
		switch {
		case err != nil || !keep(ref):
			drop = append(drop, checkPrefix+c.Ref)
		case c.Class != "":
			refused = append(refused, c.Ref)
		}
	}
	slices.Sort(refused)
	fields = map[string]string{}
	if list := strings.Join(refused, " "); list != r.fields[refusedField] {
		fields[refusedField] = list
	}
	return fields, drop
}
