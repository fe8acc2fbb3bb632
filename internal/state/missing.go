package state

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"lockstep/events"
)

// Missing are the submodules that the published tree of a ref lacks, because they could not be fetched.
type Missing struct {
	Ref        string                    `json:"ref"`
	Commit     string                    `json:"commit"`
	At         time.Time                 `json:"at"` // when they were last tried
	Count      int                       `json:"count"`
	Submodules []events.MissingSubmodule `json:"submodules"` // the first 10
}

// missingPrefix begins the names of the fields with missing submodules; missingField lists the refs that have some.
const (
	missingPrefix = "missing:"
	missingField  = "missing"

	maxMissing      = 10
	maxMissingError = 500 // bytes
)

// Missing returns the missing submodules of all refs, by ref.
func (r Repo) Missing() []Missing {
	var all []Missing
	for name, text := range r.fields {
		var m Missing
		if strings.HasPrefix(name, missingPrefix) && json.Unmarshal([]byte(text), &m) == nil {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b Missing) int { return strings.Compare(a.Ref, b.Ref) })
	return all
}

// MissingFields returns the fields to set and to drop after a sync.
func (r Repo) MissingFields(result events.Result) (fields map[string]string, drop []string) {
	name, ref := missingPrefix+result.Ref.String(), result.Ref.String()
	fields = map[string]string{}
	refs := slices.DeleteFunc(strings.Fields(r.fields[missingField]), func(other string) bool { return other == ref })
	if len(result.Missing) > 0 {
		m := Missing{Ref: ref, Commit: result.After, At: result.Time.UTC(), Count: len(result.Missing)}
		for _, one := range result.Missing[:min(len(result.Missing), maxMissing)] {
			one.Error = strings.ToValidUTF8(one.Error[:min(len(one.Error), maxMissingError)], "")
			m.Submodules = append(m.Submodules, one)
		}
		if text, err := json.Marshal(m); err == nil { // impossible otherwise
			fields[name] = string(text)
		}
		refs = append(refs, ref)
		slices.Sort(refs)
	} else if _, ok := r.fields[name]; ok {
		drop = append(drop, name)
	}
	if list := strings.Join(refs, " "); list != r.fields[missingField] {
		fields[missingField] = list
	}
	return fields, drop
}

// KeepMissing returns the fields to set and to drop so that only the missing submodules of refs that keep
// accepts remain.
func (r Repo) KeepMissing(keep func(events.Ref) bool) (fields map[string]string, drop []string) {
	var refs []string
	for _, m := range r.Missing() {
		if ref, err := events.ParseRef(m.Ref); err != nil || !keep(ref) {
			drop = append(drop, missingPrefix+m.Ref)
			continue
		}
		refs = append(refs, m.Ref)
	}
	fields = map[string]string{}
	if list := strings.Join(refs, " "); list != r.fields[missingField] {
		fields[missingField] = list
	}
	return fields, drop
}
