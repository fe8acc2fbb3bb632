package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

func newWatchListCommand(std term.Streams) *cobra.Command {
	var app string
	var limit int
	var out term.Output
	cmd := &cobra.Command{
		Use:   "ls [prefix]",
		Short: "List watches",
		Long:  "List all watches, those of one app or those of repositories with a path prefix.",
		Example: "  lockstep watch ls --redis redis://127.0.0.1:6379\n" +
			"  lockstep watch ls acme/ --app docs --json --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArgAtMost),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return term.UsageError(fmt.Errorf("--limit %d: want at least 1", limit))
			}
			return onCells(cmd, std, watchTimeout, func(ctx context.Context, d deployment) error {
				query := watch.Query{Prefix: prefixOf(args), App: app, Limit: limit}
				list, more, missing, err := (&operate.Watches{Cells: d.cells}).List(ctx, query)
				if more {
					defer fmt.Fprintf(std.Stderr, "lockstep: there are more than %d watches; add a prefix or raise --limit\n", limit)
				}
				return showList(std, &out, list, watchColumns(app != "" || len(args) > 0), missing, err)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().StringVar(&app, "app", "", "only watches of that `app`")
	cmd.Flags().IntVar(&limit, "limit", 1000, "maximum `number` of watches")
	out.AddList(cmd)
	return cmd
}

func prefixOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func watchColumns(filtered bool) term.List[watch.Watch] {
	empty := "no watches yet; add one with lockstep watch add URL --app NAME"
	if filtered {
		empty = "no such watches; see lockstep watch ls"
	}
	return term.List[watch.Watch]{
		Columns: []term.Column[watch.Watch]{
			{Head: "REPOSITORY", Text: func(w watch.Watch) string { return w.Repo.String() }},
			{Head: "APP", Text: func(w watch.Watch) string { return w.App }},
			{Head: "REF", Text: func(w watch.Watch) string { return refText(w.Ref) }},
			{Head: "POLL", Text: func(w watch.Watch) string { return w.Poll.String() }},
			{Head: "NOTIFY", Text: notifyText},
			{Head: "CREDENTIAL", Text: func(w watch.Watch) string { return w.Credential }, Wide: true},
			{Head: "DEPTH", Text: func(w watch.Watch) string { return w.Depth.String() }, Wide: true},
			{Head: "REMOTE", Text: func(w watch.Watch) string {
				if w.Auto {
					return w.URL + " (automatic)"
				}
				return w.URL
			}},
		},
		Name: func(w watch.Watch) string { return w.Repo.String() }, Empty: empty,
	}
}

func notifyText(w watch.Watch) string {
	if w.NotifyURL != "" && w.Silenced != "" {
		return "silenced " + term.Printable(w.Silenced)
	}
	return term.Dash(term.Printable(w.NotifyURL))
}

func newWatchExportCommand(std term.Streams) *cobra.Command {
	var app string
	cmd := &cobra.Command{
		Use:   "export [prefix]",
		Short: "Print watches as a file for import",
		Long: "Print watches as YAML for lockstep watch import: all, those of one app or those of repositories with " +
			"a path prefix.",
		Example: "  lockstep watch export --redis redis://127.0.0.1:6379 > watches.yaml\n" +
			"  lockstep watch export --app docs --redis redis://127.0.0.1:6379 > docs.yaml",
		Args: term.WrongUse(term.OneArgAtMost),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onCells(cmd, std, watchTimeout, func(ctx context.Context, d deployment) error {
				query := watch.Query{Prefix: prefixOf(args), App: app}
				list, _, missing, err := (&operate.Watches{Cells: d.cells}).List(ctx, query)
				if err != nil {
					return err
				}
				if err := lacking(missing); err != nil { // an incomplete file would remove watches where it is imported
					return err
				}
				return watch.WriteFile(std.Stdout, list)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().StringVar(&app, "app", "", "only watches of that `app`")
	return cmd
}
