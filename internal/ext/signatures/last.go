package signatures

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// The fields of the state are the last published commit of each ref that has rules, "signatures:{ref}", and of the
// default branch, whichever it was, "signatures:default". Each is "{commit} {Unix time}". They outlive the ref and the
// clone, until no watch has rules for them: otherwise, deleting a branch or changing the default branch would allow to
// push an older commit.

const defaultField = "default"

// maxLast limits how many commits of refs that only patterns select are kept, most of which may be gone: the newest.
const maxLast = 1000

// fieldOf returns the name of the field of a ref that a watch selects.
func fieldOf(w watch.Watch, ref events.Ref) string {
	if w.Ref.IsDefault() {
		return defaultField
	}
	return ref.String()
}

// lastCommit returns the commit of a field, or "".
func (p *part) lastCommit(field string) string {
	commit, _, _ := strings.Cut(p.last[field], " ")
	return commit
}

// lastOf returns the commit that was published last under the name that a watch selects, or "". Without a record, as of a
// new watch, it is the one that is there now, for whatever ref.
func (p *part) lastOf(w watch.Watch, c volume.Candidate) string {
	return cmp.Or(p.lastCommit(fieldOf(w, c.Ref)), standing(w, c))
}

// standing returns the commit that is published under the name that a watch selects, or "".
func standing(w watch.Watch, c volume.Candidate) string {
	if w.Ref.IsDefault() {
		return c.Plain
	}
	return c.Published
}

// Record implements [ext.Recorder]. After a refusal it records what stays under the name that a watch selects, if nothing
// is recorded.
func (p *part) Record(tip volume.Tip, isDefault, refused bool) map[string]string {
	fields := map[string]string{}
	for _, w := range p.watches {
		commit := tip.Commit
		if refused {
			commit = standing(w, p.candidate)
		}
		if commit == "" || !w.Selects(tip.Ref, isDefault) {
			continue
		}
		field := fieldOf(w, tip.Ref)
		if last := p.lastCommit(field); last != commit && (!refused || last == "") {
			fields[field] = commit + " " + strconv.FormatInt(time.Now().Unix(), 10)
		}
	}
	return fields
}

// Outdated implements [ext.Recorder].
func (p *part) Outdated() (fields []string) {
	var ofPatterns []string
	for field := range p.last {
		switch isNamed, isMatched := p.selects(field); {
		case isNamed:
		case isMatched:
			ofPatterns = append(ofPatterns, field)
		default:
			fields = append(fields, field)
		}
	}
	slices.SortFunc(ofPatterns, func(a, b string) int { return -cmp.Compare(p.recorded(a), p.recorded(b)) })
	return append(fields, ofPatterns[min(len(ofPatterns), maxLast):]...)
}

// selects reports whether a watch names a field's ref, and whether its pattern matches it.
func (p *part) selects(field string) (isNamed, isMatched bool) {
	ref, err := events.ParseRef(field)
	for _, w := range p.watches {
		switch {
		case field == defaultField:
			isNamed = isNamed || w.Ref.IsDefault()
		case err == nil && w.Ref.Matches(ref):
			isNamed, isMatched = isNamed || !w.Ref.IsPattern(), true
		}
	}
	return isNamed, isMatched
}

// recorded returns when a field was recorded, as Unix time.
func (p *part) recorded(field string) int64 {
	_, text, _ := strings.Cut(p.last[field], " ")
	at, _ := strconv.ParseInt(text, 10, 64)
	return at
}
