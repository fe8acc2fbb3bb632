package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/term"
)

// deadTimeout limits commands that may go through all letters.
const deadTimeout = 5 * time.Minute

func newDeadCommand(std term.Streams) *cobra.Command {
	return newGroup("dead", "Show, retry or drop dead letters",
		"An event that cannot be read, that kills workers, or that still fails after all attempts becomes a dead letter: the\n"+
			"original event with the reason and the error. A change that fails for good at once has a failed result instead, and\n"+
			"its repository is failing in lockstep status. Letters are kept for 30 days, up to 50,000 of them and 256 MiB.",
		newDeadListCommand(std), newDeadShowCommand(std), newDeadRetryCommand(std), newDeadDropCommand(std))
}

// deadFlags select letters.
type deadFlags struct {
	repo, reason, class, host string

	all bool
	out term.Output
}

func (f *deadFlags) Add(cmd *cobra.Command) {
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().StringVar(&f.repo, "repo", "", "repository `owner/name` of the letters")
	cmd.Flags().StringVar(&f.reason, "reason", "", "`reason` of the letters, as ls prints it")
	cmd.Flags().StringVar(&f.class, "class", "", "`class` of the fault, as ls prints it")
	cmd.Flags().StringVar(&f.host, "host", "", "`host` of the remote, with the port unless it is the default")
}

func (f *deadFlags) query(oldest bool, limit int) (q operate.LetterQuery, err error) {
	q = operate.LetterQuery{Reason: f.reason, Class: f.class, Host: f.host, Oldest: oldest, Limit: limit}
	if f.repo != "" {
		q.Repo, err = events.ParseRepoPath(f.repo)
	}
	return q, term.UsageError(err)
}

func newDeadListCommand(std term.Streams) *cobra.Command {
	var flags deadFlags
	var limit int
	var oldest bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List dead letters, newest first",
		Example: "  lockstep dead ls --redis redis://127.0.0.1:6379\n" +
			"  lockstep dead ls --repo acme/widgets --reason 'attempts used up' --json --redis redis://127.0.0.1:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return term.UsageError(fmt.Errorf("--limit %d: want at least 1", limit))
			}
			return onLetters(cmd, std, func(ctx context.Context, letters *operate.Letters) error {
				query, err := flags.query(oldest, limit)
				if err != nil {
					return err
				}
				list, more, missing, err := letters.List(ctx, query)
				if more {
					defer fmt.Fprintf(std.Stderr, "lockstep: there are more than %d letters; raise --limit\n", limit)
				}
				return showList(std, &flags.out, list, deadColumns, missing, err)
			})
		},
	}
	flags.Add(cmd)
	flags.out.AddList(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum `number` of letters")
	cmd.Flags().BoolVar(&oldest, "oldest", false, "list oldest letters first")
	return cmd
}

func newDeadShowCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:     "show id",
		Short:   "Show one dead letter with its reason, error and event",
		Example: "  lockstep dead show 1795223511284-0 --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onLetters(cmd, std, func(ctx context.Context, letters *operate.Letters) error {
				letter, err := letters.Get(ctx, "", args[0])
				if err != nil {
					return err
				}
				return out.Show(std, letter, deadDetail(letter).Table)
			})
		},
	}, config.Common, &out)
}

func newDeadRetryCommand(std term.Streams) *cobra.Command {
	return newDeadAction(std, &cobra.Command{
		Use:   "retry [id...]",
		Short: "Return events to their streams",
		Long: "Return the events of dead letters to their streams, oldest first, and remove the letters. Each event\n" +
			"keeps its id, starts with a new attempt count and goes to every consumer group of its stream,\n" +
			"including groups that had settled it. A letter is retried at most once.",
		Example: "  lockstep dead retry 1795223511284-0 --redis redis://127.0.0.1:6379\n" +
			"  lockstep dead retry --repo acme/widgets --dry-run --redis redis://127.0.0.1:6379\n" +
			"  lockstep dead retry --host git.example.com --class network --redis redis://127.0.0.1:6379\n" +
			"  lockstep dead retry --all --redis redis://127.0.0.1:6379",
	}, "retry all letters", func(
		ctx context.Context, letters *operate.Letters, selected []operate.Letter, _ int, out term.Output,
	) error {
		outcome, failed := letters.RetryAll(ctx, selected)
		if err := out.Show(std, outcome, retriedLetters(outcome).Table); failed != nil || err != nil {
			return errors.Join(failed, err)
		}
		if n := len(outcome.Refused); n > 0 {
			return fmt.Errorf("%d of %d letters were not retried: %s", n, len(selected), outcome.Refused[0].Error)
		}
		return nil
	})
}

func newDeadDropCommand(std term.Streams) *cobra.Command {
	return newDeadAction(std, &cobra.Command{
		Use:   "drop [id...]",
		Short: "Delete dead letters",
		Example: "  lockstep dead drop 1795223511284-0 --redis redis://127.0.0.1:6379\n" +
			"  lockstep dead drop --reason malformed --redis redis://127.0.0.1:6379\n" +
			"  lockstep dead drop --all --redis redis://127.0.0.1:6379",
	}, "drop all letters", func(
		ctx context.Context, letters *operate.Letters, selected []operate.Letter, named int, out term.Output,
	) error {
		n, failed := letters.DropAll(ctx, selected)
		if err := out.Show(std, map[string]int{"dropped": n}, func(w io.Writer) {
			fmt.Fprintf(w, "dropped\t%d\n", n)
		}); err != nil || failed != nil {
			return errors.Join(failed, err)
		}
		if n < named {
			return fmt.Errorf("%d of %d letters were not found; see lockstep dead ls", named-n, named)
		}
		return nil
	})
}

// newDeadAction sets up a command that applies fn to the selected letters, or lists them with --dry-run. named is how many
// are named by ID.
func newDeadAction(std term.Streams, cmd *cobra.Command, all string,
	fn func(ctx context.Context, letters *operate.Letters, selected []operate.Letter, named int, out term.Output) error,
) *cobra.Command {
	var flags deadFlags
	var dryRun bool
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		switch filtered := flags.repo+flags.reason+flags.class+flags.host != ""; {
		case len(ids) > 0 && (filtered || flags.all):
			return term.UsageError(errors.New("select letters either by id or by --repo, --reason, --class, --host or --all"))
		case len(ids) == 0 && !filtered && !flags.all:
			return term.UsageError(errors.New("select letters by id, --repo, --reason, --class, --host or --all"))
		}
		for _, id := range ids {
			if _, _, ok := events.ParseEntryID(id); !ok {
				return term.UsageError(fmt.Errorf("%w: %.40q; see lockstep dead ls", stream.ErrBadID, id))
			}
		}
		return onLetters(cmd, std, func(ctx context.Context, letters *operate.Letters) error {
			selected, missing, err := flags.selected(ctx, letters, ids, dryRun)
			if err != nil {
				return err
			}
			if dryRun {
				err = term.ShowList(std, &flags.out, selected, deadColumns)
			} else {
				err = fn(ctx, letters, selected, len(ids), flags.out)
			}
			return errors.Join(err, operate.Unanswered(missing))
		})
	}
	flags.Add(cmd)
	flags.out.Add(cmd)
	cmd.Flags().BoolVar(&flags.all, "all", false, all)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list the selected letters and change nothing")
	return cmd
}

// selected returns the selected letters, and the cells that do not answer. It takes a snapshot, so that a letter that
// fails again is not retried forever. An ID that no letter has is one of an empty letter, unless all have to exist.
func (f *deadFlags) selected(
	ctx context.Context, letters *operate.Letters, ids []string, exist bool,
) (list []operate.Letter, missing []cells.Missing, err error) {
	if len(ids) == 0 {
		query, err := f.query(true, 0)
		if err != nil {
			return nil, nil, err
		}
		list, _, missing, err = letters.List(ctx, query)
		return list, missing, err
	}
	found, missing, err := letters.Find(ctx, ids)
	for _, id := range ids {
		at := slices.IndexFunc(found, func(l operate.Letter) bool { return l.ID == id })
		switch {
		case err != nil:
			return nil, nil, err
		case at >= 0:
			list = append(list, found[at])
		case exist && len(missing) == 0:
			return nil, nil, fmt.Errorf("%w: %s", stream.ErrNoLetter, id)
		case !exist:
			list = append(list, operate.Letter{ID: id})
		}
	}
	return list, missing, nil
}

// onLetters runs fn with the letters of all cells, and adds advice to errors about ids.
func onLetters(cmd *cobra.Command, std term.Streams, fn func(context.Context, *operate.Letters) error) error {
	return onCells(cmd, std, deadTimeout, func(ctx context.Context, d deployment) error {
		err := fn(ctx, &operate.Letters{Cells: d.cells})
		switch {
		case errors.Is(err, stream.ErrBadID):
			return term.UsageError(fmt.Errorf("%w; see lockstep dead ls", err))
		case errors.Is(err, stream.ErrNoLetter):
			return fmt.Errorf("%w; see lockstep dead ls", err)
		case errors.Is(err, operate.ErrSeveralLetters):
			return term.UsageError(fmt.Errorf("%w with --cell", err))
		}
		return err
	})
}

var deadColumns = term.List[operate.Letter]{
	Columns: []term.Column[operate.Letter]{
		{Head: "ID", Text: func(l operate.Letter) string { return l.ID }},
		{Head: "CELL", Text: func(l operate.Letter) string { return l.Cell }, Optional: true},
		{Head: "GIVEN UP", Time: func(l operate.Letter) time.Time { return l.At }},
		{Head: "REPOSITORY", Text: func(l operate.Letter) string { return l.Repo }},
		{Head: "REASON", Text: func(l operate.Letter) string { return term.Printable(l.Reason) }},
		{Head: "CLASS", Text: func(l operate.Letter) string { return term.Dash(term.Printable(l.Class)) }},
		{Head: "ATTEMPTS", Text: func(l operate.Letter) string { return strconv.Itoa(l.Attempts) }},
		{Head: "HOST", Text: func(l operate.Letter) string { return term.Dash(term.Printable(l.Host)) }, Wide: true},
		{Head: "STREAM", Text: func(l operate.Letter) string { return term.Printable(l.Stream) }, Wide: true},
		{Head: "GROUP", Text: func(l operate.Letter) string { return term.Printable(l.Group) }, Wide: true},
		{Head: "ERROR", Text: func(l operate.Letter) string { return term.Printable(l.Error) }},
	},
	Name:  func(l operate.Letter) string { return l.ID },
	Empty: "no dead letters; see lockstep status for what fails but is still retried",
}

type deadDetail operate.Letter

func (d deadDetail) Table(w io.Writer) {
	fmt.Fprintf(w, "letter\t%s\n", d.ID)
	if d.Cell != "" {
		fmt.Fprintf(w, "cell\t%s\n", d.Cell)
	}
	fmt.Fprintf(w, "given up\t%s, after %d attempts\n", term.When(d.At), d.Attempts)
	fmt.Fprintf(w, "reason\t%s\n", term.Printable(d.Reason))
	fmt.Fprintf(w, "error\t%s\n", term.Printable(d.Error))
	fmt.Fprintf(w, "from\t%s, entry %s\n", term.Printable(d.Stream), term.Printable(d.Entry))
	fmt.Fprintf(w, "by\t%s of group %s\n", term.Printable(d.Consumer), term.Printable(d.Group))
	if d.Truncated != "" {
		fmt.Fprintf(w, "truncated\t%s\n", term.Printable(d.Truncated))
	}
	if d.Event == nil {
		for _, name := range slices.Sorted(maps.Keys(d.Fields)) {
			fmt.Fprintf(w, "field\t%s, %d bytes\n", term.Printable(name), d.Fields[name])
		}
		return
	}
	fmt.Fprintf(w, "repository\t%s\n", d.Repo)
	fmt.Fprintf(w, "event\t%s\n", d.Event)
}

type retriedLetters operate.RetriedLetters

func (r retriedLetters) Table(w io.Writer) {
	fmt.Fprintf(w, "retried\t%d\n", len(r.Retried))
	for _, one := range r.Refused {
		fmt.Fprintf(w, "refused\t%s\t%s\n", term.Printable(one.ID), term.Printable(one.Error))
	}
}
