package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// planTimeout limits commands that go through the repositories of all cells.
const planTimeout = 30 * time.Minute

func newCellsCommand(std term.Streams) *cobra.Command {
	return newGroup("cells", "Divide repositories among cells",
		"A cell is a deployment with a prefix and a volume of its own. The directory of cells gives each a\n"+
			"weight, by which repositories are placed; see docs/scaling.md. A deployment without cells needs none\n"+
			"of this.",
		newCellsListCommand(std), newCellsPlanCommand(std), newCellsAddCommand(std), newCellsDrainCommand(std))
}

// onDirectory runs fn with the directory of cells, which may be empty.
func onDirectory(
	cmd *cobra.Command, std term.Streams,
	fn func(context.Context, config.Config, redis.UniversalClient, *cells.Directory) error,
) error {
	return connected(cmd, std, planTimeout, func(
		ctx context.Context, cfg config.Config, client redis.UniversalClient,
	) error {
		directory, err := cells.OpenOrNew(ctx, client)
		if err != nil {
			return err
		}
		return fn(ctx, cfg, client, directory)
	})
}

func newCellsListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withListFlags(&cobra.Command{
		Use:   "ls",
		Short: "List cells with their weights and states",
		Long: "List the cells of the directory. PLACED is the weight by which repositories are placed now, WEIGHT\n" +
			"the one by which they shall be when all have been moved. OUT is how many are left to move to other\n" +
			"cells. lockstep cells plan has the reasons of failed moves.",
		Example: "  lockstep cells ls --redis redis+cluster://127.0.0.1:7000\n" +
			"  lockstep cells ls -o wide --redis redis+cluster://127.0.0.1:7000",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onDirectory(cmd, std, func(
				ctx context.Context, _ config.Config, client redis.UniversalClient, directory *cells.Directory,
			) error {
				return term.ShowList(std, &out, operate.Directory(ctx, client, directory), cellColumns)
			})
		},
	}, config.Common, &out)
}

// cellColumns is how ls prints cells.
var cellColumns = term.List[operate.Cell]{
	Columns: []term.Column[operate.Cell]{
		{Head: "CELL", Text: func(c operate.Cell) string { return c.Name }},
		{Head: "STATE", Text: func(c operate.Cell) string {
			if c.NoAnswer != "" {
				return string(c.State) + ", no answer"
			}
			return string(c.State)
		}},
		{Head: "WEIGHT", Text: func(c operate.Cell) string { return strconv.Itoa(c.Target()) }},
		{Head: "PLACED", Text: func(c operate.Cell) string { return strconv.Itoa(c.Placed) }},
		{Head: "SHARE", Text: func(c operate.Cell) string { return fmt.Sprintf("%.1f %%", c.Percent()) }},
		{Head: "WATCHED", Text: func(c operate.Cell) string { return strconv.FormatInt(c.Watched, 10) }},
		{Head: "OUT", Text: func(c operate.Cell) string {
			if c.Out == 0 {
				return ""
			}
			return strconv.Itoa(c.Out)
		}, Optional: true},
		{Head: "PREFIX", Text: func(c operate.Cell) string { return string(c.Prefix) }, Wide: true},
		{Head: "READER", Text: func(c operate.Cell) string { return term.Printable(c.Reader) }, Wide: true},
	},
	Name:  func(c operate.Cell) string { return c.Name },
	Empty: "no cells; a deployment needs none, and becomes one with lockstep cells add NAME --cell-prefix 'lockstep:{0}:'",
}

func newCellsPlanCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "plan",
		Short: "Show which repositories are to be moved between cells",
		Long: "Go through the repositories of all cells, and show how many are to be moved from where to where\n" +
			"until they are placed as the weights want it, and which moves failed and why. It changes nothing. Exit\n" +
			"code 1 if a cell does not answer.",
		Example: "  lockstep cells plan --redis redis+cluster://127.0.0.1:7000\n" +
			"  lockstep cells plan --redis redis+cluster://127.0.0.1:7000 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onDirectory(cmd, std, func(
				ctx context.Context, _ config.Config, client redis.UniversalClient, directory *cells.Directory,
			) error {
				plan, err := app.PlanCells(ctx, client, directory)
				if err != nil {
					return err
				}
				if err := out.Show(std, plan, planTable(plan)); err != nil {
					return err
				}
				return lacking(plan.Missing)
			})
		},
	}, config.Common, &out)
}

func planTable(plan app.CellPlan) func(io.Writer) {
	return func(w io.Writer) {
		if len(plan.Moves) == 0 {
			fmt.Fprintf(w, "nothing to move: %d repositories\n", plan.Repos)
		} else {
			fmt.Fprintf(w, "FROM\tTO\tREPOSITORIES\n")
		}
		for _, m := range plan.Moves {
			fmt.Fprintf(w, "%s\t%s\t%d\n", m.From, m.To, m.Repos)
		}
		for _, m := range plan.Failed {
			fmt.Fprintf(w, "the move of %s from %s to %s failed and will be tried again: %s\n", m.Repo, m.From, m.To,
				term.Printable(m.Error))
		}
	}
}

// cellChanged is the output of add and drain.
type cellChanged struct {
	Cell    operate.Cell `json:"cell"`
	Plan    app.CellPlan `json:"plan"`
	Settled bool         `json:"settled"`           // nothing is left to move
	Watches *int         `json:"watches,omitempty"` // of a lost cell, placed elsewhere
	Tokens  int          `json:"tokens,omitempty"`  // of a deployment that becomes a cell, now valid in all cells
}

func (c cellChanged) Table(w io.Writer) {
	fmt.Fprintf(w, "cell %s: %s, weight %d\n", c.Cell.Name, c.Cell.State, c.Cell.Target())
	if c.Watches != nil {
		fmt.Fprintf(w, "%d watches placed in other cells\n", *c.Watches)
	}
	if c.Tokens > 0 {
		fmt.Fprintf(w, "%d tokens of apps are valid in all cells now\n", c.Tokens)
	}
	planTable(c.Plan)(w)
}

func newCellsAddCommand(std term.Streams) *cobra.Command {
	var out term.Output
	var weight int
	var prefix string
	cmd := withFlags(&cobra.Command{
		Use:   "add NAME",
		Short: "Add a cell, or change the weight of one",
		Long: "Add a cell to the directory, change the weight of a cell, or keep a draining one. Its keys have the\n" +
			"prefix lockstep:{NAME}: or --cell-prefix, with which an existing deployment becomes a cell without a\n" +
			"change of its keys. The first cell gets all repositories. Afterwards all repositories stay where\n" +
			"they are, new ones included, until they are moved; the plan is shown, and if there is nothing to\n" +
			"move the new weights take effect at once. Tokens of apps that the deployment has are copied to the\n" +
			"directory, as all cells share them.",
		Example: "  lockstep cells add eu-1 --cell-prefix 'lockstep:{0}:' --redis redis+cluster://127.0.0.1:7000\n" +
			"  lockstep cells add eu-2 --weight 200 --redis redis+cluster://127.0.0.1:7000",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkCell(args[0], prefix, weight, cmd.Flags().Changed("weight")); err != nil {
				return term.UsageError(err)
			}
			return onDirectory(cmd, std, func(
				ctx context.Context, cfg config.Config, client redis.UniversalClient, directory *cells.Directory,
			) error {
				if err := unused(ctx, client, directory, args[0]); err != nil {
					return err
				}
				changed := cellChanged{}
				if _, known := directory.Cell(args[0]); !known { // else it could bring back removed ones
					former := access.NewTokens(client, events.Namespace(cmp.Or(prefix, string(cells.PrefixOf(args[0])))))
					var err error
					if changed.Tokens, err = former.CopyTo(ctx, access.NewTokens(client, cells.DefaultPrefix)); err != nil {
						return err
					}
				}
				cell, err := directory.Add(ctx, args[0], events.Namespace(prefix), weight)
				if err != nil {
					return err
				}
				return showChanged(ctx, std, out, client, directory, cell, changed)
			})
		},
	}, config.Common, &out)
	cmd.Flags().IntVar(&weight, "weight", 0,
		"share of repositories in `proportion` to other cells (default 100, or as it is)")
	cmd.Flags().StringVar(&prefix, "cell-prefix", "",
		"`prefix` of the cell's keys, with one {hash tag} (default: lockstep:{NAME}:)")
	return cmd
}

func checkCell(name, prefix string, weight int, weighted bool) error {
	if err := cells.CheckName(name); err != nil {
		return err
	}
	if weighted && (weight < 1 || weight > cells.MaxWeight) {
		return fmt.Errorf("--weight %d: want 1 to %d", weight, cells.MaxWeight)
	}
	if prefix == "" {
		return nil
	}
	_, err := events.ParseNamespace(prefix)
	return err
}

// unused returns an error if a cell that is gone still has watches: their repositories are placed elsewhere now.
func unused(ctx context.Context, client redis.UniversalClient, directory *cells.Directory, name string) error {
	cell, ok := directory.Cell(name)
	if !ok || cell.State != cells.Gone {
		return nil
	}
	n, err := watch.NewRegistry(client, cell.Prefix).Count(ctx)
	if err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("cell %s is gone, and its keys still have watches of %d repositories that are placed "+
			"elsewhere: delete the keys with the prefix %s, and use a new volume, or add a cell with another name",
			name, n, cell.Prefix)
	}
	return nil
}

func newCellsDrainCommand(std term.Streams) *cobra.Command {
	var out term.Output
	var lost bool
	cmd := withFlags(&cobra.Command{
		Use:   "drain NAME",
		Short: "Mark a cell to be emptied, or give up a lost one",
		Long: "Mark a cell as draining: its repositories are to be moved to the other cells, and stay in it until\n" +
			"then. With --lost, for a cell whose volume or Redis is lost, place them in the other cells at once,\n" +
			"move nothing, and fetch what is watched from the remotes, within the limits of their hosts. Its\n" +
			"watches are read from its Redis if that still answers; otherwise import them from a file of lockstep\n" +
			"watch export. Changes, dead letters and notifications that only its Redis had are lost with it.",
		Example: "  lockstep cells drain eu-2 --redis redis+cluster://127.0.0.1:7000\n" +
			"  lockstep cells drain eu-2 --lost --redis redis+cluster://127.0.0.1:7000",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onDirectory(cmd, std, func(
				ctx context.Context, _ config.Config, client redis.UniversalClient, directory *cells.Directory,
			) error {
				if lost {
					return giveUpCell(ctx, std, out, client, directory, args[0])
				}
				cell, err := directory.Drain(ctx, args[0])
				if err != nil {
					return err
				}
				return showChanged(ctx, std, out, client, directory, cell, cellChanged{})
			})
		},
	}, config.Common, &out)
	cmd.Flags().BoolVar(&lost, "lost", false, "the cell is lost: place its repositories elsewhere at once")
	return cmd
}

// giveUpCell places the repositories of a lost cell elsewhere, and its watches if they can be read. If they
// cannot, it returns an error that says so after it has shown the rest.
func giveUpCell(
	ctx context.Context, std term.Streams, out term.Output, client redis.UniversalClient, directory *cells.Directory,
	name string,
) error {
	cell, err := directory.Lose(ctx, name)
	if err != nil {
		return err
	}
	member := cell.Member()
	answer := cells.Gather(ctx, []cells.Member{member}, cells.AnswerTimeout, func(
		ctx context.Context, m cells.Member,
	) (int64, error) {
		return watch.NewRegistry(client, m.Namespace).Count(ctx)
	})[0]
	if answer.Err != nil {
		if err := showChanged(ctx, std, out, client, directory, cell, cellChanged{}); err != nil {
			return err
		}
		return fmt.Errorf("the watches of cell %s cannot be read (%s): import them with lockstep watch "+
			"import FILE --cell all, from the last file of lockstep watch export; other repositories are fetched "+
			"when their next change arrives", name, answer.Missing().Error)
	}
	watches, err := app.ReplaceWatches(ctx, client, directory, member)
	if err != nil {
		return fmt.Errorf("%d watches of cell %s were placed elsewhere; repeat the command: %w", watches, name, err)
	}
	return showChanged(ctx, std, out, client, directory, cell, cellChanged{Watches: &watches})
}

// showChanged shows the plan after a change. If nothing is left to move, the new weights take effect.
func showChanged(
	ctx context.Context, std term.Streams, out term.Output, client redis.UniversalClient, directory *cells.Directory,
	cell cells.Cell, changed cellChanged,
) error {
	plan, err := app.PlanCells(ctx, client, directory)
	if err != nil {
		return err
	}
	changed.Plan = plan
	if plan.Empty() {
		if err := directory.Settle(ctx, plan.Epoch); err != nil {
			return err
		}
		changed.Settled = true
	}
	for _, c := range operate.Directory(ctx, client, directory) {
		if c.Name == cell.Name {
			changed.Cell = c
		}
	}
	if err := out.Show(std, changed, changed.Table); err != nil {
		return err
	}
	return lacking(plan.Missing)
}
