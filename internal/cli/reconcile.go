package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/schedule"
	"lockstep/internal/term"
)

func newReconcileCommand(std term.Streams) *cobra.Command {
	var prune, dryRun bool
	var out term.Output
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Reconcile watches, state and volume, and poll all watches",
		Long: "Compare watches, recorded state and the volume, report differences and publish changes that repair\n" +
			"them. Poll every watched repository that is not busy. The service does the same: it reconciles every\n" +
			"six hours and polls every poll-every.",
		Example: "  lockstep reconcile --redis redis://127.0.0.1:6379 --root /srv/repos\n" +
			"  lockstep reconcile --dry-run --json --redis redis://127.0.0.1:6379 --root /srv/repos",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onCells(cmd, std, 10*time.Minute, func(ctx context.Context, d deployment) error {
				if !d.cells.IsSingle() {
					return term.UsageError(errOneCell)
				}
				cfg := d.cfg.In(d.cells.Members()[0])
				volume, err := app.ViewVolume(ctx, cfg, d.redis)
				if err != nil {
					return err
				}
				if volume == nil {
					return term.UsageError(fmt.Errorf("%s is not the volume of this prefix; set --root to its directory", cfg.Root))
				}
				r := app.NewReconciler(cfg, d.redis, volume, app.NewLogger(std.Stderr, cfg, slog.LevelError))
				r.Source, r.Poll, r.Prune, r.DryRun = "/lockstep/cli", true, prune, dryRun
				report, err := r.Run(ctx)
				if err != nil {
					return err
				}
				return out.Show(std, report, func(w io.Writer) { reportTable(w, report) })
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Keeping)
	cmd.Flags().BoolVar(&prune, "prune", false, "also remove clones that were never watched")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "report only, publish no changes")
	out.Add(cmd)
	return cmd
}

func reportTable(w io.Writer, report schedule.Report) {
	fmt.Fprintf(w, "%d watched, %d clones, %d busy, %d findings\n", report.Watched, report.Clones, report.Busy,
		len(report.Findings))
	for _, f := range report.Findings {
		asked := f.Asked
		if asked == "" {
			asked = "reported"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Repo, f.Kind, asked, f.Detail)
	}
}
