package cli

import (
	"cmp"
	"strings"
	"time"

	"lockstep/internal/operate"
	"lockstep/internal/term"
)

// shortRef returns a branch without refs/heads/, and another ref in full.
func shortRef(ref string) string { return strings.TrimPrefix(ref, "refs/heads/") }

func timeOf(t *time.Time) time.Time { return *cmp.Or(t, &time.Time{}) }

// syncedText says when a repository was last synced.
func syncedText(r operate.RepoSummary) string {
	if r.Removed != "" {
		return "removed by entry " + r.Removed
	}
	if r.Synced == nil {
		return "not yet"
	}
	return term.When(*r.Synced)
}
