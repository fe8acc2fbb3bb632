package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/term"
)

const boxesListed = 1000

func newNotifyListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withListFlags(&cobra.Command{
		Use:   "ls [app]",
		Short: "List the notifications that wait to be posted",
		Long: "List the apps for which notifications wait, those with the most first; or, of one app, the repositories,\n" +
			"the oldest first, with the webhook-id of the first notification, for lockstep result, and its last\n" +
			"answer. An app is posted to in order about each repository, so a notification that fails holds back the\n" +
			"next ones. Those that were given up are in lockstep dead ls.",
		Example: "  lockstep notify ls --redis redis://127.0.0.1:6379\n" +
			"  lockstep notify ls docs --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onOutboxes(cmd, std, func(ctx context.Context, outboxes *operate.Outboxes) error {
				if len(args) == 0 {
					apps, missing, err := outboxes.Apps(ctx)
					return showList(std, &out, apps, waitingAppColumns, missing, err)
				}
				boxes, more, missing, err := outboxes.Of(ctx, args[0], boxesListed)
				if more {
					defer fmt.Fprintf(std.Stderr, "only the oldest %d repositories are listed\n", boxesListed)
				}
				return showList(std, &out, boxes, boxColumns(args[0]), missing, err)
			})
		},
	}, config.Common, &out)
}

func newNotifySendCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "send APP",
		Short: "Post what waits for an app now",
		Long: "Post what waits for an app now, instead of after the delay since the last failure. A running notifier\n" +
			"does it. An app that accepts a notification after an outage is posted to at once without this.",
		Example: "  lockstep notify send docs --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onOutboxes(cmd, std, func(ctx context.Context, outboxes *operate.Outboxes) error {
				sent, err := outboxes.Send(ctx, args[0])
				if err != nil {
					return err
				}
				err = out.Show(std, sent, func(w io.Writer) {
					fmt.Fprintf(w, "due now\t%s, repositories: %d\n", term.Printable(sent.App), sent.Repos)
				})
				if err != nil || len(sent.Missing) == 0 {
					return err
				}
				return fmt.Errorf("not those of cell %s, which does not answer", strings.Join(sent.Missing, ", "))
			})
		},
	}, config.Common, &out)
}

// onOutboxes runs fn with the outboxes of all cells.
func onOutboxes(cmd *cobra.Command, std term.Streams, fn func(context.Context, *operate.Outboxes) error) error {
	return onCells(cmd, std, 30*time.Second, func(ctx context.Context, d deployment) error {
		return fn(ctx, &operate.Outboxes{Cells: d.cells})
	})
}

var waitingAppColumns = term.List[notify.App]{
	Columns: []term.Column[notify.App]{
		{Head: "APP", Text: func(a notify.App) string { return term.Printable(a.Name) }},
		{Head: "WAITING", Text: func(a notify.App) string { return strconv.FormatInt(a.Items, 10) }},
		{Head: "REPOSITORIES", Text: func(a notify.App) string { return strconv.FormatInt(a.Repos, 10) }},
		{Head: "NEXT ATTEMPT", Time: func(a notify.App) time.Time { return a.Next }, None: "-"},
	},
	Name:  func(a notify.App) string { return a.Name },
	Empty: "no notification waits: apps have received all results, or no watch has a notification URL",
}

func boxColumns(app string) term.List[notify.Box] {
	return term.List[notify.Box]{
		Columns: []term.Column[notify.Box]{
			{Head: "REPOSITORY", Text: func(b notify.Box) string { return term.Printable(b.Repo) }},
			{Head: "CELL", Text: func(b notify.Box) string { return b.Cell }, Optional: true},
			{Head: "WAITING", Text: func(b notify.Box) string { return strconv.FormatInt(b.Items, 10) }},
			{Head: "SINCE", Time: func(b notify.Box) time.Time { return b.Queued }, None: "-"},
			{Head: "FAILED", Text: func(b notify.Box) string { return strconv.Itoa(b.Failed) }},
			{Head: "NEXT ATTEMPT", Time: func(b notify.Box) time.Time { return b.Next }, None: "-"},
			{Head: "WEBHOOK-ID", Text: func(b notify.Box) string { return term.Printable(b.ID) }},
			{Head: "LAST ERROR", Text: func(b notify.Box) string { return term.Printable(b.Error) }},
		},
		Name:  func(b notify.Box) string { return b.Repo },
		Empty: fmt.Sprintf("no notification waits for %s", term.Printable(app)),
	}
}
