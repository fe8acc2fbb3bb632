package status

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/changes"
	"lockstep/internal/state"
	"lockstep/internal/term"
)

// Missing is what [operate.RepoSummary.Missing] says of a repository.
const Missing = "submodules missing"

// ResultLine formats a result in a few words.
func ResultLine(r events.Result) string {
	head := strings.Join([]string{changes.Kind(r.Type), r.Repo.String(), r.Ref.String(), r.App}, " ")
	switch r.Type {
	case events.ResultSynced:
		if r.Unchanged() {
			return head + fmt.Sprintf(" unchanged at %.12s", r.After)
		}
		line := head + fmt.Sprintf(" %.12s to %.12s, %d files, %v", cmp.Or(r.Before, "nothing"), r.After, len(r.Files),
			r.Took)
		if n := len(r.Missing); n > 0 {
			line += fmt.Sprintf(", %d %s", n, Missing)
		}
		return line
	case events.ResultView:
		return head + fmt.Sprintf(" %s %.12s to %.12s, subtree %.12s, %d files", r.View, cmp.Or(r.Before, "nothing"),
			r.After, r.Subtree, len(r.Files))
	case events.ResultFailed:
		return head + " " + string(r.Class) + ": " + r.Error
	case events.ResultMoved:
		return head + " to " + r.To.String()
	case events.ResultPurged:
		return head + fmt.Sprintf(" %.12s", r.Commit)
	case events.ResultPolled:
		if r.LeftOut > 0 {
			head += fmt.Sprintf(" %d left out,", r.LeftOut)
		}
		return head + fmt.Sprintf(" %d due %s", r.Due, r.Class)
	}
	return head
}

// MissingLines returns lines about the submodules that could not be fetched.
func MissingLines(r events.Result) (lines string) {
	for _, m := range r.Missing {
		lines += OneLine("without submodule", m.Path+":", m.Error) + "\n"
	}
	return lines
}

// FailureText formats the class, time and next attempt of a repository's last failure, and the first bytes of
// its error, up to limit.
func FailureText(f state.Trouble, limit int) string {
	next := "given up until the next push or poll"
	if f.Next != nil {
		next = "next attempt " + f.Next.Format(time.RFC3339)
		if f.Next.Before(time.Now()) { // it waits for its turn at a host, or for a worker
			next = "next attempt due"
		}
	}
	text := term.Printable(f.Error)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return fmt.Sprintf("%s at %s, %s: %s", f.Class, f.At.Format(time.RFC3339), next, text)
}

// OneLine joins words into one printable line.
func OneLine(words ...string) string {
	return term.Clean(strings.Join(strings.Fields(strings.Join(words, " ")), " "))
}
