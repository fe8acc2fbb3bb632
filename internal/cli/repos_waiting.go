package cli

import (
	"fmt"

	"lockstep/internal/notify"
	"lockstep/internal/term"
)

// waitingText says how many notifications wait, since when, and why.
func waitingText(box notify.Box) string {
	text := fmt.Sprintf("%d waiting since %s", box.Items, term.When(box.Queued))
	if box.Failed == 0 {
		return text
	}
	text += fmt.Sprintf(", attempt %d failed", box.Failed)
	if !box.Next.IsZero() {
		text += ", next attempt " + term.Absolute(box.Next)
	}
	if box.Error != "" {
		text += ": " + term.Printable(box.Error)
	}
	return text
}
