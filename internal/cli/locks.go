package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/term"
	"lockstep/locking"
)

func newLocksCommand(std term.Streams) *cobra.Command {
	return newGroup("locks", "Show or release repository leases", "",
		newLocksListCommand(std), newLocksShowCommand(std), newLocksReleaseCommand(std))
}

func newLocksListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withListFlags(&cobra.Command{
		Use:     "ls",
		Short:   "List held leases",
		Example: "  lockstep locks ls --redis redis://127.0.0.1:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onLeases(cmd, std, func(ctx context.Context, leases *operate.Leases) error {
				list, missing, err := leases.List(ctx)
				return showList(std, &out, list, lockColumns, missing, err)
			})
		},
	}, config.Common, &out)
}

func newLocksShowCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:     "show owner/name",
		Short:   "Show one lease, its holder and its wait queue",
		Example: "  lockstep locks show acme/widgets --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, err := events.ParseRepoPath(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			return onLeases(cmd, std, func(ctx context.Context, leases *operate.Leases) error {
				lease, err := leases.Get(ctx, "", repo)
				if err != nil {
					return err
				}
				return out.Show(std, lease, lockDetail(lease).Table)
			})
		},
	}, config.Common, &out)
}

func newLocksReleaseCommand(std term.Streams) *cobra.Command {
	var fence uint64
	var out term.Output
	cmd := withFlags(&cobra.Command{
		Use:   "release owner/name",
		Short: "Release a lease by force",
		Long: "Release a lease by force: its holder's work is cancelled, and after a short delay the next in the\n" +
			"wait queue gets the lease. With --fence, as shown by locks show, only that lease is released;\n" +
			"without, whichever is held now.",
		Example: "  lockstep locks release acme/widgets --fence 1795223511284000 --redis redis://127.0.0.1:6379",
		Args:    term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, err := events.ParseRepoPath(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			return onLeases(cmd, std, func(ctx context.Context, leases *operate.Leases) error {
				if fence == 0 {
					lease, err := leases.Get(ctx, "", repo)
					if err != nil {
						return err
					}
					if !lease.Held {
						return fmt.Errorf("%s is not held; there is nothing to release", repo)
					}
					fence = lease.Fence
				}
				released, err := leases.Release(ctx, "", repo, fence)
				if errors.Is(err, locking.ErrNotHeld) {
					return fmt.Errorf("%s is not held with fence %d; see lockstep locks show %s", repo, fence, repo)
				}
				if err != nil {
					return err
				}
				return out.Show(std, released, func(w io.Writer) {
					fmt.Fprintf(w, "released\t%s (fence %d), held by %s\n", repo, fence, partyText(released.From))
				})
			})
		},
	}, config.Common, &out)
	cmd.Flags().Uint64Var(&fence, "fence", 0, "`fence` of the lease to release (default: that of the current lease)")
	return cmd
}

// onLeases runs fn with the leases of all cells.
func onLeases(cmd *cobra.Command, std term.Streams, fn func(context.Context, *operate.Leases) error) error {
	return onCells(cmd, std, 30*time.Second, func(ctx context.Context, d deployment) error {
		return fn(ctx, &operate.Leases{Cells: d.cells})
	})
}

var lockColumns = term.List[operate.Lease]{
	Columns: []term.Column[operate.Lease]{
		{Head: "REPOSITORY", Text: func(l operate.Lease) string { return l.Repo }},
		{Head: "CELL", Text: func(l operate.Lease) string { return l.Cell }, Optional: true},
		{Head: "OPERATION", Text: func(l operate.Lease) string { return l.Holder.Operation }},
		{Head: "JOB", Text: func(l operate.Lease) string { return l.Holder.Job }},
		{Head: "WORKER", Text: func(l operate.Lease) string { return l.Holder.Worker }},
		{Head: "SINCE", Time: func(l operate.Lease) time.Time { return timeOf(l.Since) }},
		{Head: "WAITING", Text: func(l operate.Lease) string { return strconv.Itoa(len(l.Waiters)) }},
		{Head: "REMAINING", Text: func(l operate.Lease) string { return remaining(l).String() }, Wide: true},
		{Head: "FENCE", Text: func(l operate.Lease) string { return strconv.FormatUint(l.Fence, 10) }, Wide: true},
	},
	Name:  func(l operate.Lease) string { return l.Repo },
	Empty: "no leases are held: no worker is at work on a repository; see lockstep status",
}

type lockDetail operate.Lease

func (l lockDetail) Table(w io.Writer) {
	fmt.Fprintf(w, "repository\t%s\n", l.Repo)
	if l.Held {
		fmt.Fprintf(w, "held by\t%s\n", partyText(*l.Holder))
		fmt.Fprintf(w, "since\t%s\n", term.When(*l.Since))
		fmt.Fprintf(w, "remaining\t%v\n", remaining(operate.Lease(l)))
	} else {
		fmt.Fprintf(w, "held by\tnobody\n")
	}
	if l.Fence != 0 {
		fmt.Fprintf(w, "fence\t%d\n", l.Fence)
	}
	waiterRows(w, l.Waiters)
}

func waiterRows(w io.Writer, waiters []operate.Party) {
	for i, waiter := range waiters {
		fmt.Fprintf(w, "waits, %d\t%s\n", i+1, partyText(waiter))
	}
}

func remaining(l operate.Lease) time.Duration {
	return (time.Duration(l.RemainingMS) * time.Millisecond).Round(100 * time.Millisecond)
}

func partyText(p operate.Party) string {
	return fmt.Sprintf("job %s (%s) on %s", p.Job, p.Operation, p.Worker)
}
