package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

func newResultCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "result ID",
		Short: "Show one result: commits, files, webhook, attempts and who was notified when",
		Long: "Show one result. ID is the webhook-id of a notification, the id of the result, or a stream entry, its own\n" +
			"or that of the change. It searches the results since the change, or for a webhook-id the last 25,000.",
		Example: "  lockstep result 1795223511284-0 --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onCells(cmd, std, 30*time.Second, func(ctx context.Context, d deployment) error {
				result, err := (&operate.Results{Cells: d.cells}).Get(ctx, args[0])
				if errors.Is(err, operate.ErrNoResult) {
					return fmt.Errorf("%w; see lockstep tail -o json --since 1h", err)
				}
				if err != nil {
					return err
				}
				return out.Show(std, result, resultDetail(result).Table)
			})
		},
	}, config.Common, &out)
}

type resultDetail operate.Result

const filesListed = 20

func (d resultDetail) Table(w io.Writer) {
	r := d.Result
	fmt.Fprintf(w, "result\t%s\n", term.Printable(status.ResultLine(r)))
	fmt.Fprintf(w, "settled\t%s, entry %s, after %d attempts, by %s\n", term.When(d.At), d.Entry, r.Attempts,
		term.Printable(r.Source[strings.LastIndexByte(r.Source, '/')+1:]))
	fmt.Fprintf(w, "id\t%s\n", term.Printable(r.ID))
	if r.Tree != "" {
		fmt.Fprintf(w, "tree\t%s\n", term.Printable(r.Tree))
	}
	if c := d.Change; c != nil {
		fmt.Fprintf(w, "change\t%s from %s, requested %s\n", term.Printable(c.ID), term.Printable(c.Source), term.When(c.Time))
	}
	if h := d.Webhook; h != nil {
		fmt.Fprintf(w, "webhook\t%s of %s, received %s\n", term.Printable(h.Delivery), term.Printable(h.Source), term.When(h.At))
	}
	for _, p := range d.Posts {
		fmt.Fprintf(w, "notify %s\t%s%s\n", term.Printable(p.App), p.State, postText(p)+", "+p.ID)
	}
	for _, f := range r.Files[:min(len(r.Files), filesListed)] {
		fmt.Fprintf(w, "file\t%s %s\n", f.Status, term.Printable(f.Path))
	}
	if more := len(r.Files) - filesListed; more > 0 {
		fmt.Fprintf(w, "file\tand %d more; see -o json\n", more)
	}
}

func postText(p notify.Post) string {
	switch {
	case p.Box != nil:
		return ", " + waitingText(*p.Box)
	case p.Letter != "":
		return " " + term.When(p.At) + ", dead letter " + p.Letter
	case !p.At.IsZero():
		return " " + term.When(p.At)
	}
	return ""
}

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
