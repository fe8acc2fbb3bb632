package state

import (
	"cmp"
	"strings"

	"lockstep/events"
)

// ExtensionField returns the name of a field of an extension.
func ExtensionField(extension, name string) string { return extension + ":" + name }

// ExtensionFields returns the fields of an extension, by name without the prefix. It is nil if there are none.
func (r Repo) ExtensionFields(extension string) map[string]string {
	var fields map[string]string
	prefix := ExtensionField(extension, "")
	for name, value := range r.fields {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			if fields == nil {
				fields = map[string]string{}
			}
			fields[rest] = value
		}
	}
	return fields
}

// isOfExtension reports whether a field is one of an extension.
func isOfExtension(name string) bool {
	kind, _, hasName := strings.Cut(name, ":")
	_, isOurs := fieldKinds[kind]
	return hasName && !isOurs
}

// KeptFields returns the fields to set at the path to, which has the state there, after a move without a clone: those of
// extensions, which outlive it.
func (r Repo) KeptFields(there Repo, to events.RepoPath) map[string]string {
	fields := map[string]string{}
	for name, value := range r.fields {
		if isOfExtension(name) && there.fields[name] == "" {
			fields[name], fields["repo"] = value, cmp.Or(there.Path(), to.String())
		}
	}
	return fields
}
