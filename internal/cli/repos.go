package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/state"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

func newReposCommand(std term.Streams) *cobra.Command {
	return newGroup("repos", "Show and maintain repositories", "",
		newReposListCommand(std), newReposShowCommand(std), newReposGCCommand(std), newReposVerifyCommand(std),
		newReposMoveCommand(std), newReposPurgeCommand(std), newReposRemoveCommand(std))
}

func newReposListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	var limit int
	cmd := &cobra.Command{
		Use:   "ls [prefix]",
		Short: "List repositories",
		Long: "List all known repositories, or those with a path prefix: the default branch, its published commit,\n" +
			"when each was last synced, and its last error. If --root is the volume of the deployment, also the\n" +
			"disk usage of each. -o wide adds fences, failures in a row and circuit breakers.",
		Example: "  lockstep repos ls --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos ls acme/ --limit 20 -o wide --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos ls -q --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArgAtMost),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return term.UsageError(fmt.Errorf("--limit %d: want at least 1", limit))
			}
			return onCells(cmd, std, time.Minute, func(ctx context.Context, d deployment) error {
				lines, more, missing, err := (&operate.Repos{Cells: d.cells}).List(ctx, prefixOf(args), limit)
				if err != nil {
					return err
				}
				list, err := measure(ctx, std, d, lines)
				if more {
					fmt.Fprintf(std.Stderr, "lockstep: there are more repositories; add a prefix or raise --limit\n")
				}
				return showList(std, &out, list, repoColumns(len(args) > 0), missing, err)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Reading)
	cmd.Flags().IntVar(&limit, "limit", 1000, "maximum number of `repositories`")
	out.AddList(cmd)
	return cmd
}

func newReposShowCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "show owner/name",
		Short: "Show one repository: failures, heads, last result per app, circuit breaker and lease",
		Example: "  lockstep repos show acme/widgets --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos show acme/widgets --json --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, err := events.ParseRepoPath(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			return onRepo(cmd, std, 10*time.Second, repo, func(ctx context.Context, d deployment) error {
				detail, err := readRepo(ctx, d, repo)
				if err != nil {
					return err
				}
				return out.Show(std, detail, detail.Table)
			})
		},
	}, config.Common|config.Reading, &out)
}

func newReposRemoveCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "rm OWNER/NAME",
		Short: "Remove a repository that never existed, with its failures and dead letters",
		Long: "Remove what is known of a repository that no app watches and that is not published, as after a mistyped\n" +
			"URL: its state, failures and dead letters. A change of it that still waits brings it back.",
		Example: "  lockstep repos rm acme/widget --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, err := events.ParseRepoPath(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			return onCells(cmd, std, deadTimeout, func(ctx context.Context, d deployment) error {
				removed, err := (&operate.Repos{Cells: d.cells}).Remove(ctx, repo)
				if err != nil {
					return err
				}
				return out.Show(std, removed, func(w io.Writer) {
					fmt.Fprintf(w, "removed\t%s, dead letters: %d\n", removed.Repo, removed.Letters)
				})
			})
		},
	}, config.Common, &out)
}

// repoDetail is the output of show.
type repoDetail struct {
	operate.Repo
	Waiting []notify.Box `json:"waiting_notifications,omitempty"` // by app
	Volume  *onDisk      `json:"volume,omitempty"`
}

func readRepo(ctx context.Context, d deployment, repo events.RepoPath) (repoDetail, error) {
	recorded, err := (&operate.Repos{Cells: d.cells}).Get(ctx, repo)
	if errors.Is(err, operate.ErrUnknownRepo) {
		return repoDetail{}, fmt.Errorf("%w; see lockstep repos ls and lockstep watch ls", err)
	}
	if err != nil {
		return repoDetail{}, err
	}
	volume, err := app.ViewVolume(ctx, d.cfg, d.redis)
	if err != nil {
		return repoDetail{}, err
	}
	disk, err := describe(volume, repo.String())
	if err != nil {
		return repoDetail{}, err
	}
	waiting, err := (&operate.Outboxes{Cells: d.cells}).About(ctx, repo)
	return repoDetail{recorded, waiting, disk}, err
}

func (r repoDetail) Table(w io.Writer) {
	fmt.Fprintf(w, "repository\t%s\n", r.Repo.Repo)
	if r.Remote != "" {
		fmt.Fprintf(w, "remote\t%s\n", r.Remote)
	}
	for _, ref := range slices.Sorted(maps.Keys(r.Heads)) {
		fmt.Fprintf(w, "head\t%s\t%.12s\n", ref, r.Heads[ref])
	}
	fmt.Fprintf(w, "synced\t%s\n", syncedText(r.RepoSummary))
	for _, f := range r.Failing {
		fmt.Fprintf(w, "failing\t%s\t%s\t%s\n", appOf(f), refOf(f), status.FailureText(f, math.MaxInt))
	}
	if r.Awaited != nil {
		for _, a := range r.Awaited.Commits {
			fmt.Fprintf(w, "announced\t%s\t%s\t%.12s\tnot visible yet, since %s, next look %s, given up at %s\n",
				cmp.Or(term.Printable(a.App), "(no app)"), cmp.Or(a.Ref, "default branch"), a.Commit, term.When(a.Since),
				nextPoll(r.Awaited.Next, time.Now()), a.Since.Add(state.AwaitedFor).Format(time.RFC3339))
		}
	}
	answered := term.When(r.Answered)
	if r.Unchecked {
		answered += ", unchecked: longer ago than the poll interval"
	}
	fmt.Fprintf(w, "answered\t%s\n", answered)
	if r.Poll != nil {
		fmt.Fprintf(w, "next poll\t%s\n", nextPoll(*r.Poll, time.Now()))
	}
	for _, c := range r.Checks {
		checkRows(w, c)
	}
	for _, m := range r.Lacks {
		missingRows(w, m)
	}
	for _, l := range r.LeftOut {
		leftOutRow(w, l)
	}
	for _, last := range r.Last {
		fmt.Fprintf(w, "last result\t%s\t%s\t%.12s\t%s\n", cmp.Or(term.Printable(last.App), "(no app)"), last.Ref,
			last.Commit, strings.TrimSpace(last.State+" "+string(last.Class)))
	}
	for _, box := range r.Waiting {
		fmt.Fprintf(w, "notify %s\t%s, %s\n", term.Printable(box.App), term.Dash(term.Printable(box.ID)), waitingText(box))
	}
	if r.Lock.Held {
		fmt.Fprintf(w, "lease\t%s by job %s on %s since %s\n", r.Lock.Holder.Operation, r.Lock.Holder.Job,
			r.Lock.Holder.Worker, term.When(*r.Lock.Since))
	} else {
		fmt.Fprintf(w, "lease\tfree\n")
	}
	waiterRows(w, r.Lock.Waiters)
	fmt.Fprintf(w, "circuit\t%s, failures in a row: %d\n", status.Circuit(r.RepoSummary), r.InARow())
	if r.Fence != 0 {
		fmt.Fprintf(w, "fence\t%d\n", r.Fence)
	}
	r.Volume.Table(w)
}

// nextPoll says when a poll is due. One that is overdue is queued within seconds.
func nextPoll(at, now time.Time) string {
	if at.Before(now) {
		return "due"
	}
	return term.When(at)
}

func appOf(f state.Trouble) string {
	if f.IsOfPoll() && f.App == "" {
		return "all apps"
	}
	return cmp.Or(term.Printable(f.App), "(no app)")
}

func refOf(f state.Trouble) string {
	if f.Operation != "sync" {
		return f.Operation
	}
	return cmp.Or(term.Printable(f.Ref), "default branch")
}

// missingRows prints what a tree lacks.
func missingRows(w io.Writer, m state.Missing) {
	for _, one := range m.First {
		fmt.Fprintf(w, "missing\t%s\t%.12s\t%s: %s: %s\n", m.Ref, m.Commit, term.Printable(one.Path), one.Class,
			term.Printable(one.Error))
	}
	if more := m.Count - len(m.First); more > 0 {
		fmt.Fprintf(w, "missing\t%s\t%.12s\tand %d more\n", m.Ref, m.Commit, more)
	}
}

// leftOutRow prints refs that a watch selects, but that are not kept.
func leftOutRow(w io.Writer, l state.LeftOut) {
	text := strings.Join(l.Refs, " ")
	if more := l.Count - len(l.Refs); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	fmt.Fprintf(w, "left out\t%s: %s\n", term.Printable(l.String()), term.Printable(text))
}

// checkRows prints why a commit is refused, or else one row for each set of keys.
func checkRows(w io.Writer, c state.Check) {
	if c.Class != "" {
		fmt.Fprintf(w, "refused\t%s\t%.12s\t%s\n", c.Ref, c.Commit, term.Printable(c.Reason))
		return
	}
	for _, v := range c.Verdicts {
		text := "not verified: " + v.Reason
		switch {
		case v.Verified && v.Object == "tag":
			text = fmt.Sprintf("tag signed by %s, key %s", v.By, v.Key)
		case v.Verified:
			text = fmt.Sprintf("signed by %s, key %s, %d commits verified", v.By, v.Key, v.Commits)
		}
		if v.Partial {
			text += ", older ones not"
		}
		fmt.Fprintf(w, "keys %s\t%s\t%.12s\t%s\n", v.Keys, c.Ref, c.Commit, term.Printable(text))
	}
}
