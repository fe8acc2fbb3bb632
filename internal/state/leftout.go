package state

import (
	"encoding/json"
	"fmt"
	"strings"
)

// LeftOut counts refs of the remote that a watch selects by name, but that are not kept.
type LeftOut struct {
	App     string        `json:"app"`
	Ref     string        `json:"ref"` // as the watch selects it; empty for the default branch
	Reason  LeftOutReason `json:"reason"`
	MaxRefs int           `json:"max_refs,omitempty"` // limit of the watch, for [BeyondMaxRefs]
	Count   int           `json:"count"`
	Refs    []string      `json:"refs"` // the first 10
}

// LeftOutReason is why refs are left out.
type LeftOutReason string

// The reasons.
const (
	BeyondMaxRefs LeftOutReason = "max-refs" // the pattern matches more refs than the watch keeps
	InvalidName   LeftOutReason = "name"     // the name cannot be published: see [events.ParseRef]
	NoCommit      LeftOutReason = "commit"   // a tag of a tree or a blob
)

// leftOutField has what the last poll has left out, as JSON.
const leftOutField = "leftout"

const (
	maxLeftOut     = 20  // entries
	maxLeftOutRefs = 10  // names per entry
	maxLeftOutName = 300 // bytes
)

// NewLeftOut fills in Count and Refs of l.
func NewLeftOut(l LeftOut, refs []string) LeftOut {
	l.Count = len(refs)
	for _, ref := range refs[:min(len(refs), maxLeftOutRefs)] {
		l.Refs = append(l.Refs, clip(strings.ToValidUTF8(ref, "\uFFFD"), maxLeftOutName))
	}
	return l
}

// String says how many refs are left out, of what and why, in a few words.
func (l LeftOut) String() string {
	of := l.Ref
	if of == "" {
		of = "the default branch"
	}
	switch l.Reason {
	case NoCommit:
		return fmt.Sprintf("%d of %s for %s, of trees or blobs instead of commits", l.Count, of, l.App)
	case BeyondMaxRefs:
		return fmt.Sprintf("%d of %s for %s, beyond max-refs %d", l.Count, of, l.App, l.MaxRefs)
	}
	return fmt.Sprintf("%d of %s for %s, with names that are too long or not UTF-8", l.Count, of, l.App)
}

// LeftOut returns what the last poll has left out, at most the first 20 entries.
func (r Repo) LeftOut() []LeftOut {
	var all []LeftOut
	if text := r.fields[leftOutField]; text == "" || json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	return all
}

// LeftOutFields returns the fields to set and to drop after a poll.
func (r Repo) LeftOutFields(all []LeftOut) (fields map[string]string, drop []string) {
	was, had := r.fields[leftOutField]
	if len(all) == 0 {
		if had {
			drop = []string{leftOutField}
		}
		return nil, drop
	}
	text, err := json.Marshal(all[:min(len(all), maxLeftOut)])
	if err != nil || string(text) == was { // an error is impossible
		return nil, nil
	}
	return map[string]string{leftOutField: string(text)}, nil
}
