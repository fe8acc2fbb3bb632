package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/cells/move"
	"lockstep/internal/config"
	"lockstep/internal/term"
	"lockstep/internal/volume"
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

// listedCell is a cell in the output of ls.
type listedCell struct {
	cells.Cell
	Epoch    int64   `json:"epoch"`
	Share    float64 `json:"share"` // of the weights by which repositories are placed now, 0 to 1
	Watched  int64   `json:"watched"`
	NoAnswer string  `json:"no_answer,omitempty"`

	Out *app.MovesLeft `json:"moves_out,omitempty"` // repositories that are left to move to other cells
	In  *app.MovesLeft `json:"moves_in,omitempty"`  // to this cell
	// to this cell, whose last attempt failed; at most 20 are counted
	Failed int `json:"moves_failed,omitempty"`
}

func newCellsListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withListFlags(&cobra.Command{
		Use:   "ls",
		Short: "List cells with their weights and states",
		Long: "List the cells of the directory. PLACED is the weight by which repositories are placed now, WEIGHT\n" +
			"the one by which they shall be when all have been moved. While repositories are moved, OUT and IN\n" +
			"are how many are left, how many are moved a second and the time that the rest will take. lockstep\n" +
			"cells plan has the reasons of failed moves.",
		Example: "  lockstep cells ls --redis redis+cluster://127.0.0.1:7000\n" +
			"  lockstep cells ls -o wide --redis redis+cluster://127.0.0.1:7000",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onDirectory(cmd, std, func(
				ctx context.Context, _ config.Config, client redis.UniversalClient, directory *cells.Directory,
			) error {
				list := listCells(ctx, client, directory)
				failedMoves := app.FailedMoves(ctx, client, directory, maxFailed)
				for i, cell := range list {
					failed := failedMoves[cell.Name]
					if len(failed) == 0 {
						continue
					}
					list[i].Failed = len(failed)
					last := slices.MaxFunc(failed, func(a, b move.Request) int { return a.Requested.Compare(b.Requested) })
					fmt.Fprintf(std.Stderr, "lockstep: moves to cell %s failed, that of %s: %s; "+
						"see lockstep cells plan\n", cell.Name, last.Repo, term.Printable(last.Error))
				}
				return term.ShowList(std, &out, list, cellColumns)
			})
		},
	}, config.Common, &out)
}

const maxFailed = 20 // failed moves to each cell that are counted

func listCells(ctx context.Context, client redis.UniversalClient, directory *cells.Directory) []listedCell {
	list := []listedCell{}
	for _, c := range app.ReadCells(ctx, client, directory) {
		one := listedCell{Cell: c.Cell, Epoch: c.Epoch, Share: c.Share, Watched: c.Watched}
		if c.Missing != nil {
			one.NoAnswer = c.Missing.Error
		}
		if c.Out.Left > 0 {
			one.Out = &c.Out
		}
		if c.In.Left > 0 {
			one.In = &c.In
		}
		list = append(list, one)
	}
	return list
}

// movesText says how many repositories are left to move, or "" if none are.
func movesText(m *app.MovesLeft) string {
	if m == nil {
		return ""
	}
	return m.String()
}

// cellColumns is how ls prints cells.
var cellColumns = term.List[listedCell]{
	Columns: []term.Column[listedCell]{
		{Head: "CELL", Text: func(c listedCell) string { return c.Name }},
		{Head: "STATE", Text: func(c listedCell) string {
			if c.NoAnswer != "" {
				return string(c.State) + ", no answer"
			}
			return string(c.State)
		}},
		{Head: "WEIGHT", Text: func(c listedCell) string { return strconv.Itoa(c.Target()) }},
		{Head: "PLACED", Text: func(c listedCell) string { return strconv.Itoa(c.Placed) }},
		{Head: "SHARE", Text: func(c listedCell) string { return fmt.Sprintf("%.1f %%", 100*c.Share) }},
		{Head: "WATCHED", Text: func(c listedCell) string { return strconv.FormatInt(c.Watched, 10) }},
		{Head: "OUT", Text: func(c listedCell) string { return movesText(c.Out) }, Optional: true},
		{Head: "IN", Text: func(c listedCell) string { return movesText(c.In) }, Optional: true},
		{Head: "PREFIX", Text: func(c listedCell) string { return string(c.Prefix) }, Wide: true},
		{Head: "READER", Text: func(c listedCell) string { return term.Printable(c.Reader) }, Wide: true},
		{Head: "VOLUME", Text: func(c listedCell) string { return term.Printable(c.Volume) }, Wide: true},
		{Head: "EPOCH", Text: func(c listedCell) string { return strconv.FormatInt(c.Epoch, 10) }, Wide: true},
	},
	Name:  func(c listedCell) string { return c.Name },
	Empty: "no cells; a deployment needs none, and becomes one with lockstep cells add NAME --cell-prefix 'lockstep:{0}:'",
}

func newCellsPlanCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "plan",
		Short: "Show which repositories are to be moved between cells",
		Long: "Go through the repositories of all cells, and show how many are to be moved from where to where\n" +
			"until they are placed as the weights want it, and which moves failed and why. Sizes are those of the\n" +
			"repositories on the volume at --root, if it is that of a cell. It changes nothing. Exit code 1 if a\n" +
			"cell does not answer.",
		Example: "  lockstep cells plan --redis redis+cluster://127.0.0.1:7000\n" +
			"  lockstep cells plan --root /srv/repos --redis redis+cluster://127.0.0.1:7000 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onDirectory(cmd, std, func(
				ctx context.Context, cfg config.Config, client redis.UniversalClient, directory *cells.Directory,
			) error {
				plan, err := app.PlanCells(ctx, client, directory, sizes(ctx, cfg, client))
				if err != nil {
					return err
				}
				if err := out.Show(std, plan, planTable(plan)); err != nil {
					return err
				}
				return lacking(plan.Missing)
			})
		},
	}, config.Common|config.Reading, &out)
}

// sizes returns the sizes of repositories on the volume that is mounted here.
func sizes(
	ctx context.Context, cfg config.Config, client redis.UniversalClient,
) func(cells.Member, events.RepoPath) (int64, bool) {
	volumes := map[cells.Member]*volume.Volume{}
	return func(cell cells.Member, repo events.RepoPath) (int64, bool) {
		mounted, known := volumes[cell]
		if !known {
			mounted, _ = app.ViewVolume(ctx, app.InCell(cfg, cell), client) // without it, the size is not known
			volumes[cell] = mounted
		}
		disk, err := describe(mounted, repo.String())
		if err != nil || disk == nil {
			return 0, false
		}
		return disk.Bytes, true
	}
}

func planTable(plan app.CellPlan) func(io.Writer) {
	return func(w io.Writer) {
		if len(plan.Moves) == 0 {
			fmt.Fprintf(w, "nothing to move: %d repositories\n", plan.Repos)
		} else {
			fmt.Fprintf(w, "FROM\tTO\tREPOSITORIES\tSIZE\n")
		}
		for _, m := range plan.Moves {
			size := volume.BytesText(m.Bytes)
			switch {
			case m.Measured == 0:
				size = "unknown"
			case m.Measured < m.Repos:
				size = fmt.Sprintf("%s in %d of them", size, m.Measured)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", m.From, m.To, m.Repos, size)
		}
		for _, m := range plan.Failed {
			outcome := "will be tried again"
			if m.Refused {
				outcome = "is refused until this is resolved"
			}
			fmt.Fprintf(w, "the move of %s from %s to %s failed (%d attempts) and %s: %s\n", m.Repo, m.From, m.To,
				m.Tries, outcome, term.Printable(m.Error))
		}
		if plan.Strays > 0 {
			fmt.Fprintf(w, "%d repositories are also in a cell where they are not placed; "+
				"their changes there are forwarded\n", plan.Strays)
		}
	}
}

// cellChanged is the output of add and drain.
type cellChanged struct {
	Cell    listedCell   `json:"cell"`
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
				_, known := directory.Cell(args[0])
				cell, err := directory.AddAfter(ctx, args[0], events.Namespace(prefix), weight, func(
					ctx context.Context, cell cells.Cell,
				) error {
					if known { // it could bring back removed ones
						return nil
					}
					copied, err := access.NewTokens(client, cell.Prefix).CopyTo(ctx, access.NewTokens(client, cells.DefaultPrefix))
					changed.Tokens += copied
					return err
				})
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
	member := cells.Member{Name: cell.Name, Namespace: cell.Prefix}
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
	plan, err := app.PlanCells(ctx, client, directory, nil)
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
	for _, c := range listCells(ctx, client, directory) {
		if c.Name == cell.Name {
			changed.Cell = c
		}
	}
	if err := out.Show(std, changed, changed.Table); err != nil {
		return err
	}
	return lacking(plan.Missing)
}
