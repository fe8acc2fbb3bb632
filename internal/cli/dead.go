package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/server"
	"lockstep/internal/term"
)

// deadTimeout limits commands that may go through all letters.
const deadTimeout = 5 * time.Minute

func newDeadCommand(std term.Streams) *cobra.Command {
	return newGroup("dead", "Show, retry or drop dead letters",
		"An event that fails permanently, or too often, becomes a dead letter: the original event with the reason and the\n"+
			"error. Letters are kept for 30 days, up to 50,000 of them and 256 MiB.",
		newDeadListCommand(std), newDeadShowCommand(std), newDeadRetryCommand(std), newDeadDropCommand(std))
}

// deadFlags select letters.
type deadFlags struct {
	repo, reason string
	all          bool
	out          term.Output
}

func (f *deadFlags) Add(cmd *cobra.Command) {
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().StringVar(&f.repo, "repo", "", "repository `owner/name` of the letters")
	cmd.Flags().StringVar(&f.reason, "reason", "", "`reason` of the letters, as ls prints it")
}

func (f *deadFlags) query(dead *stream.DeadLetters) (stream.Query, error) {
	q := stream.Query{Reason: f.reason}
	if f.repo != "" {
		repo, err := events.ParseRepoPath(f.repo)
		if err != nil {
			return q, term.UsageError(err)
		}
		q.Match = server.DeadOf(dead, repo)
	}
	return q, nil
}

// validate returns an error unless letters are selected either by valid ids or by flags.
func (f *deadFlags) validate(ids []string) error {
	filtered := f.repo != "" || f.reason != ""
	switch {
	case len(ids) > 0 && (filtered || f.all):
		return term.UsageError(errors.New("select letters either by id or by --repo, --reason or --all"))
	case len(ids) == 0 && !filtered && !f.all:
		return term.UsageError(errors.New("select letters by id, --repo, --reason or --all"))
	}
	for _, id := range ids {
		if _, _, ok := events.ParseEntryID(id); !ok {
			return deadError(fmt.Errorf("%w: %.40q; want the form 1795223511284-0", stream.ErrBadID, id))
		}
	}
	return nil
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
			return onCells(cmd, std, deadTimeout, func(
				ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set,
			) error {
				byTime := func(a, b server.DeadLetter) int {
					if oldest {
						a, b = b, a
					}
					return b.At.Compare(a.At)
				}
				list, more, missing, err := gather(ctx, cfg, set, limit, byTime, func(
					cfg config.Config, cell string,
				) ([]server.DeadLetter, bool, error) {
					return flags.list(ctx, cfg, client, cell, oldest, limit)
				})
				if err != nil {
					return err
				}
				if more {
					defer fmt.Fprintf(std.Stderr, "lockstep: there are more than %d letters; raise --limit\n", limit)
				}
				if err := term.ShowList(std, &flags.out, list, list, deadColumns); err != nil {
					return err
				}
				return lacking(missing)
			})
		},
	}
	flags.Add(cmd)
	flags.out.AddList(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum `number` of letters")
	cmd.Flags().BoolVar(&oldest, "oldest", false, "list oldest letters first")
	return cmd
}

// list returns up to limit letters of one cell, and reports whether there are more.
func (f *deadFlags) list(
	ctx context.Context, cfg config.Config, client redis.UniversalClient, cell string, oldest bool, limit int,
) (list []server.DeadLetter, more bool, err error) {
	dead := stream.NewDeadLetters(client, cfg.Prefix)
	query, err := f.query(dead)
	if err != nil {
		return nil, false, err
	}
	query.Oldest = oldest
	for letter, err := range letters(ctx, dead, query) {
		if err != nil {
			return list, more, err
		}
		if len(list) == limit {
			return list, true, nil
		}
		one := server.NewDeadLetter(dead, letter, false)
		one.Cell = cell
		list = append(list, one)
	}
	return list, false, nil
}

func newDeadShowCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:     "show id",
		Short:   "Show one dead letter with its reason, error and event",
		Example: "  lockstep dead show 1795223511284-0 --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onCells(cmd, std, deadTimeout, func(
				ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set,
			) error {
				selected, missing, err := (&deadFlags{}).selected(ctx, cfg, client, set, args)
				if err != nil {
					return err
				}
				for _, one := range selected {
					if len(one.ids) == 0 {
						continue
					}
					letter, err := one.dead.Get(ctx, one.ids[0])
					if err != nil && len(missing) > 0 {
						err = fmt.Errorf("%w; %w", err, unanswered(missing))
					}
					if err != nil {
						return deadError(err)
					}
					detail := deadDetail(server.NewDeadLetter(one.dead, letter, true))
					detail.Cell = one.cell
					return out.Show(std, detail, detail.Table)
				}
				return unanswered(missing)
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
			"  lockstep dead retry --all --redis redis://127.0.0.1:6379",
	}, "retry all letters", func(ctx context.Context, selected []selectedLetters, _ []string, out term.Output) error {
		outcome, ids := deadRetried{Retried: []server.DeadRetried{}, Refused: []server.DeadRetried{}}, 0
		var failed error
		for _, part := range selected {
			ids += len(part.ids)
			failed = errors.Join(failed, part.failed(outcome.retry(ctx, part)))
		}
		if showErr := out.Show(std, outcome, outcome.Table); failed != nil || showErr != nil {
			return errors.Join(failed, showErr)
		}
		if n := len(outcome.Refused); n > 0 {
			return fmt.Errorf("%d of %d letters were not retried: %s", n, ids, outcome.Refused[0].Error)
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
	}, "drop all letters", func(ctx context.Context, selected []selectedLetters, args []string, out term.Output) error {
		n := 0
		var failed error
		for _, part := range selected {
			dropped, err := part.dead.Drop(ctx, part.ids...)
			failed, n = errors.Join(failed, part.failed(err)), n+dropped
		}
		if err := out.Show(std, map[string]int{"dropped": n}, func(w io.Writer) {
			fmt.Fprintf(w, "dropped\t%d\n", n)
		}); err != nil || failed != nil {
			return errors.Join(failed, err)
		}
		if n < len(args) {
			return fmt.Errorf("%d of %d letters were not found; see lockstep dead ls", len(args)-n, len(args))
		}
		return nil
	})
}

// newDeadAction sets up a command that applies fn to the selected letters, or lists them with --dry-run.
func newDeadAction(std term.Streams, cmd *cobra.Command, all string,
	fn func(ctx context.Context, selected []selectedLetters, args []string, out term.Output) error) *cobra.Command {
	var flags deadFlags
	var dryRun bool
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := flags.validate(args); err != nil {
			return err
		}
		return onCells(cmd, std, deadTimeout, func(
			ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set,
		) error {
			selected, missing, err := flags.selected(ctx, cfg, client, set, args)
			if err != nil {
				return err
			}
			if dryRun {
				err = showSelected(ctx, std, selected, flags.out)
			} else {
				err = fn(ctx, selected, args, flags.out)
			}
			if len(missing) == 0 {
				return err
			}
			return errors.Join(err, unanswered(missing))
		})
	}
	flags.Add(cmd)
	flags.out.Add(cmd)
	cmd.Flags().BoolVar(&flags.all, "all", false, all)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list the selected letters and change nothing")
	return cmd
}

// selectedLetters are the selected letters of one cell.
type selectedLetters struct {
	dead *stream.DeadLetters
	cell string // its name, if there are several
	ids  []string
}

// failed adds the cell to an error, after which the other cells go on.
func (s selectedLetters) failed(err error) error { return cells.Member{Name: s.cell}.Explain(err) }

// selected returns the selected letters of each cell that answers, and the others. If there are several
// cells, a letter that is selected by its ID is looked for in all of them; one that none has is among those
// of the first, which then says so.
func (f *deadFlags) selected(
	ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set, ids []string,
) (all []selectedLetters, missing []cells.Missing, err error) {
	missing, err = eachCell(ctx, cfg, set, func(cfg config.Config, cell cells.Member) (err error) {
		one := selectedLetters{ids: ids, dead: stream.NewDeadLetters(client, cfg.Prefix)}
		one.cell = cellName(set, cell)
		switch {
		case len(ids) == 0:
			one.ids, err = f.ids(ctx, one.dead)
		case !set.IsSingle():
			one.ids, err = existing(ctx, one.dead, ids)
		}
		if err != nil {
			return err
		}
		all = append(all, one)
		return nil
	})
	if err != nil || set.IsSingle() {
		return all, missing, err
	}
	found := map[string]string{}
	for _, one := range all {
		for _, id := range one.ids {
			if other, ok := found[id]; ok && other != one.cell && len(ids) > 0 {
				return nil, nil, term.UsageError(fmt.Errorf("the cells %s and %s both have a letter %s: "+
					"name one with --cell", other, one.cell, id))
			}
			found[id] = one.cell
		}
	}
	for _, id := range ids {
		if _, ok := found[id]; !ok && len(all) > 0 {
			all[0].ids = append(all[0].ids, id)
		}
	}
	return all, missing, nil
}

// existing returns those of ids that are letters.
func existing(ctx context.Context, dead *stream.DeadLetters, ids []string) (found []string, err error) {
	for _, id := range ids {
		_, err := dead.Get(ctx, id)
		if errors.Is(err, stream.ErrNoLetter) {
			continue
		}
		if err != nil {
			return nil, deadError(err)
		}
		found = append(found, id)
	}
	return found, nil
}

// showSelected lists letters as dead ls does.
func showSelected(ctx context.Context, std term.Streams, selected []selectedLetters, out term.Output) error {
	list := []server.DeadLetter{}
	for _, part := range selected {
		for _, id := range part.ids {
			letter, err := part.dead.Get(ctx, id)
			if err != nil {
				return deadError(err)
			}
			one := server.NewDeadLetter(part.dead, letter, false)
			one.Cell = part.cell
			list = append(list, one)
		}
	}
	return term.ShowList(std, &out, list, list, deadColumns)
}

// ids returns the IDs of the letters that the flags select, oldest first. It takes a snapshot, so that a
// letter that fails again is not retried forever.
func (f *deadFlags) ids(ctx context.Context, dead *stream.DeadLetters) ([]string, error) {
	query, err := f.query(dead)
	if err != nil {
		return nil, err
	}
	var ids []string
	for letter, err := range letters(ctx, dead, query) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, letter.ID)
	}
	slices.Reverse(ids)
	return ids, nil
}

// letters yields the letters that match q, page by page. It ends after an error.
func letters(ctx context.Context, dead *stream.DeadLetters, q stream.Query) iter.Seq2[stream.Letter, error] {
	return func(yield func(stream.Letter, error) bool) {
		for {
			page, next, err := dead.List(ctx, q)
			if err != nil {
				yield(stream.Letter{}, err)
				return
			}
			for _, letter := range page {
				if !yield(letter, nil) {
					return
				}
			}
			if q.After = next; next == "" {
				return
			}
		}
	}
}

// deadError adds advice to errors about ids. A malformed id is a usage error.
func deadError(err error) error {
	advised := fmt.Errorf("%s; see lockstep dead ls", strings.TrimPrefix(err.Error(), "stream: "))
	switch {
	case errors.Is(err, stream.ErrBadID):
		return term.UsageError(advised)
	case errors.Is(err, stream.ErrNoLetter):
		return advised
	}
	return err
}

var deadColumns = term.List[server.DeadLetter]{
	Columns: []term.Column[server.DeadLetter]{
		{Head: "ID", Text: func(l server.DeadLetter) string { return l.ID }},
		{Head: "CELL", Text: func(l server.DeadLetter) string { return l.Cell }, Optional: true},
		{Head: "GIVEN UP", Time: func(l server.DeadLetter) time.Time { return l.At }},
		{Head: "REPOSITORY", Text: func(l server.DeadLetter) string { return l.Repo }},
		{Head: "REASON", Text: func(l server.DeadLetter) string { return term.Printable(l.Reason) }},
		{Head: "ATTEMPTS", Text: func(l server.DeadLetter) string { return strconv.Itoa(l.Attempts) }},
		{Head: "STREAM", Text: func(l server.DeadLetter) string { return term.Printable(l.Stream) }, Wide: true},
		{Head: "GROUP", Text: func(l server.DeadLetter) string { return term.Printable(l.Group) }, Wide: true},
		{Head: "ERROR", Text: func(l server.DeadLetter) string { return term.Printable(l.Error) }},
	},
	Name:  func(l server.DeadLetter) string { return l.ID },
	Empty: "no dead letters; see lockstep status for what fails but is still retried",
}

type deadDetail server.DeadLetter

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

type deadRetried struct {
	Retried []server.DeadRetried `json:"retried"`
	Refused []server.DeadRetried `json:"refused"`
}

// retry retries the letters of one cell, up to the first error of Redis.
func (r *deadRetried) retry(ctx context.Context, letters selectedLetters) error {
	for _, id := range letters.ids {
		topic, entry, err := letters.dead.Retry(ctx, id)
		switch {
		case err == nil:
			r.Retried = append(r.Retried, server.DeadRetried{ID: id, Stream: topic, Entry: entry})
		case errors.Is(err, stream.ErrNoLetter), errors.Is(err, stream.ErrNotRetryable):
			why := strings.TrimPrefix(err.Error(), "stream: ")
			r.Refused = append(r.Refused, server.DeadRetried{ID: id, Error: why})
		default:
			return err
		}
	}
	return nil
}

func (r deadRetried) Table(w io.Writer) {
	fmt.Fprintf(w, "retried\t%d\n", len(r.Retried))
	for _, one := range r.Refused {
		fmt.Fprintf(w, "refused\t%s\t%s\n", term.Printable(one.ID), term.Printable(one.Error))
	}
}
