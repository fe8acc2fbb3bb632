package status

import (
	"cmp"
	"fmt"
	"strings"

	"lockstep/events"
	"lockstep/internal/cli/term"
)

// ResultLine formats a result in a few words.
func ResultLine(r events.Result) string {
	head := strings.Join([]string{Kind(string(r.Type)), r.Repo.String(), r.Ref.String(), r.App}, " ")
	switch r.Type {
	case events.ResultSynced:
		if r.Unchanged() {
			return head + fmt.Sprintf(" unchanged at %.12s", r.After)
		}
		return head + fmt.Sprintf(" %.12s to %.12s, %d files, %v", cmp.Or(r.Before, "nothing"), r.After, len(r.Files), r.Took)
	case events.ResultFailed:
		return head + " " + string(r.Class) + ": " + r.Error
	case events.ResultMoved:
		return head + " to " + r.To.String()
	case events.ResultPolled:
		return head + fmt.Sprintf(" %d due %s", r.Due, r.Class)
	}
	return head
}

// Kind returns the kind from an event type, such as "synced" from lockstep.result.synced.v1.
func Kind(eventType string) string {
	parts := strings.Split(eventType, ".")
	return parts[max(0, len(parts)-2)]
}

// OneLine joins words into one printable line.
func OneLine(words ...string) string {
	return term.Rendered(strings.Join(strings.Fields(strings.Join(words, " ")), " "), false)
}
