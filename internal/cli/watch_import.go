package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

func newWatchImportCommand(std term.Streams) *cobra.Command {
	var prune, dryRun bool
	var out term.Output
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import watches from a file",
		Long: "Add the watches of a YAML file (- for standard input) and update existing ones that differ. --prune\n" +
			"removes watches that are not in the file, but only of apps that are. The whole file is validated,\n" +
			"also against existing watches, before anything changes. An import that fails halfway can be\n" +
			"repeated.",
		Example: "  lockstep watch import watches.yaml --dry-run --prune --redis redis://127.0.0.1:6379\n" +
			"  lockstep watch export --app docs | lockstep watch import - --redis redis://127.0.0.2:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			watches, err := readWatches(cmd, args[0])
			if err != nil {
				return err
			}
			return onCells(cmd, std, watchTimeout, func(ctx context.Context, d deployment) error {
				plans, err := planWatches(ctx, d.cells, watches, prune)
				if err != nil {
					return fmt.Errorf("%s was not imported: %w", args[0], err)
				}
				var all watch.Plan
				for _, p := range plans {
					if !dryRun {
						if err := p.registry.ApplyPlan(ctx, p.plan); err != nil {
							return err
						}
					}
					all.Add, all.Change = append(all.Add, p.plan.Add...), append(all.Change, p.plan.Change...)
					all.Remove, all.Same = append(all.Remove, p.plan.Remove...), all.Same+p.plan.Same
				}
				outcome := newWatchesImported(all, dryRun)
				return out.Show(std, outcome, outcome.Table)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().BoolVar(&prune, "prune", false, "remove other watches of the apps in the file")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the changes without making them")
	out.Add(cmd)
	return cmd
}

// cellPlan is what an import changes in one cell.
type cellPlan struct {
	registry *watch.Registry
	plan     watch.Plan
}

// planWatches plans the import of watches into the cells of their repositories. To prune, each cell has to
// answer, and loses what the file does not have of its repositories.
func planWatches(
	ctx context.Context, set *cells.Set, watches []watch.Watch, prune bool,
) (plans []cellPlan, err error) {
	of, apps := map[cells.Member][]watch.Watch{}, map[string]bool{}
	for _, w := range watches {
		cell, err := set.Of(w.Repo)
		if err != nil {
			return nil, err
		}
		of[cell], apps[w.App] = append(of[cell], w), true
	}
	if prune {
		if _, missing := set.Answering(ctx); len(missing) > 0 {
			return nil, operate.Unanswered(missing)
		}
	}
	for _, cell := range set.Members() {
		if len(of[cell]) == 0 && !set.IsSingle() && !prune {
			continue
		}
		var pruned func(watch.Watch) bool
		if prune {
			pruned = func(w watch.Watch) bool {
				place, err := set.Of(w.Repo) // another one while it moves
				return apps[w.App] && err == nil && place == cell
			}
		}
		registry := watch.NewRegistry(set.Redis(), cell.Namespace)
		plan, err := registry.Plan(ctx, of[cell], pruned)
		if err != nil {
			return nil, cell.Explain(err)
		}
		plans = append(plans, cellPlan{registry, plan})
	}
	return plans, nil
}

// readWatches reads a file or standard input. Its errors are usage errors.
func readWatches(cmd *cobra.Command, name string) ([]watch.Watch, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, term.UsageError(err)
		}
		defer file.Close()
		in = file
	}
	watches, err := watch.ReadFile(in)
	if err != nil {
		return nil, term.UsageError(fmt.Errorf("%s: %w", name, err))
	}
	return watches, nil
}

// watchesImported lists the changes of an import, made or planned.
type watchesImported struct {
	Added     []watch.Watch `json:"added"`
	Changed   []watch.Watch `json:"changed"`
	Removed   []watch.Watch `json:"removed"`
	Unchanged int           `json:"unchanged"`
	DryRun    bool          `json:"dry_run,omitempty"`
}

func newWatchesImported(p watch.Plan, dryRun bool) watchesImported {
	none := []watch.Watch{}
	return watchesImported{append(none, p.Add...), append(none, p.Change...), append(none, p.Remove...), p.Same, dryRun}
}

func (i watchesImported) Table(w io.Writer) {
	for _, part := range []struct {
		outcome string
		watches []watch.Watch
	}{{"added", i.Added}, {"changed", i.Changed}, {"removed", i.Removed}} {
		for _, one := range part.watches {
			watchRow(w, part.outcome, one)
		}
	}
	fmt.Fprintf(w, "unchanged\t%d\n", i.Unchanged)
	if i.DryRun {
		fmt.Fprintln(w, "dry run: nothing was changed")
	}
}
