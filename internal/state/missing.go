package state

import (
	"slices"
	"time"

	"lockstep/events"
)

// Missing are the submodules that the published tree of a ref lacks, because they could not be fetched.
type Missing struct {
	Ref    string                    `json:"ref"`
	Commit string                    `json:"commit"`
	At     time.Time                 `json:"at"` // when they were last tried
	Count  int                       `json:"count"`
	First  []events.MissingSubmodule `json:"submodules"` // at most 10
}

// about implements [record].
func (m Missing) about() (ref string, isListed bool) { return m.Ref, true }

const (
	missingField    = "missing"
	maxMissing      = 10
	maxMissingError = 500 // bytes
)

var missing = records[Missing]{"missing:", missingField}

// Missing returns the missing submodules of all refs, by ref.
func (r Repo) Missing() []Missing { return missing.all(r) }

// MissingFields returns the fields to set and to drop after a sync.
func (r Repo) MissingFields(result events.Result) (fields map[string]string, drop []string) {
	if len(result.Missing) == 0 {
		return missing.set(r, result.Ref, nil)
	}
	m := Missing{Ref: result.Ref.String(), Commit: result.After, At: result.Time.UTC(), Count: len(result.Missing)}
	m.First = slices.Clone(result.Missing[:min(len(result.Missing), maxMissing)])
	for i := range m.First {
		m.First[i].Error = clip(m.First[i].Error, maxMissingError)
	}
	return missing.set(r, result.Ref, &m)
}
