package state

import (
	"encoding/json"
	"slices"
	"strings"

	"lockstep/events"
)

// records are what the state knows of refs, as JSON in the fields "{prefix}{ref}". As [Store.List] reads only a few fields
// of each repository, the refs of some are also in the field list, separated by spaces, which may list refs that are gone.
type records[T record] struct{ prefix, list string }

type record interface {
	about() (ref string, isListed bool)
}

// of returns the record of a ref, or false if there is none.
func (k records[T]) of(r Repo, ref string) (one T, ok bool) {
	text := r.fields[k.prefix+ref]
	return one, text != "" && json.Unmarshal([]byte(text), &one) == nil
}

// all returns all records, by ref.
func (k records[T]) all(r Repo) (all []T) {
	var refs []string
	for name := range r.fields {
		if ref, ok := strings.CutPrefix(name, k.prefix); ok {
			refs = append(refs, ref)
		}
	}
	slices.Sort(refs)
	for _, ref := range refs {
		if one, ok := k.of(r, ref); ok {
			all = append(all, one)
		}
	}
	return all
}

// set returns the fields to set and to drop so that a ref has one record, or none if it is nil.
func (k records[T]) set(r Repo, ref events.Ref, one *T) (fields map[string]string, drop []string) {
	name := ref.String()
	listed := slices.DeleteFunc(strings.Fields(r.fields[k.list]), func(other string) bool { return other == name })
	fields = map[string]string{}
	if one != nil {
		if _, isListed := (*one).about(); isListed {
			listed = append(listed, name)
		}
		if text, err := json.Marshal(one); err == nil { // impossible otherwise
			fields[k.prefix+name] = string(text)
		}
	} else if _, ok := r.fields[k.prefix+name]; ok {
		drop = append(drop, k.prefix+name)
	}
	k.relist(r, fields, listed)
	return fields, drop
}

// keep adds the fields to set and to drop so that only the records of refs that keep accepts remain.
func (k records[T]) keep(r Repo, fields map[string]string, keep func(events.Ref) bool) (drop []string) {
	var listed []string
	for _, one := range k.all(r) {
		name, isListed := one.about()
		switch ref, err := events.ParseRef(name); {
		case err != nil || !keep(ref):
			drop = append(drop, k.prefix+name)
		case isListed:
			listed = append(listed, name)
		}
	}
	k.relist(r, fields, listed)
	return drop
}

// relist sets the field of the listed refs, if it changes.
func (k records[T]) relist(r Repo, fields map[string]string, refs []string) {
	slices.Sort(refs)
	if text := strings.Join(refs, " "); text != r.fields[k.list] {
		fields[k.list] = text
	}
}

// KeepRecords returns the fields to set and to drop so that only the checks and the missing files of refs that keep accepts
// remain.
func (r Repo) KeepRecords(keep func(events.Ref) bool) (fields map[string]string, drop []string) {
	fields = map[string]string{}
	return fields, append(checks.keep(r, fields, keep), missing.keep(r, fields, keep)...)
}
