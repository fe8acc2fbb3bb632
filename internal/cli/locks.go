package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/server"
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
			return onCells(cmd, std, locksTimeout, func(
				ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set,
			) error {
				byRepo := func(a, b server.Lock) int { return cmp.Compare(a.Repo, b.Repo) }
				list, _, missing, err := operate.Gather(ctx, set, 0, byRepo, func(
					cell cells.Member,
				) (list []server.Lock, more bool, err error) {
					err = inspecting(func(ctx context.Context, inspector *locking.Inspector) error {
						held, err := inspector.List(ctx)
						for _, status := range held {
							lock := server.NewLock(status)
							lock.Cell = operate.Shown(set, cell)
							list = append(list, lock)
						}
						return err
					})(ctx, app.InCell(cfg, cell), client)
					return list, false, err
				})
				if err != nil {
					return err
				}
				if err := term.ShowList(std, &out, list, list, lockColumns); err != nil {
					return err
				}
				return lacking(missing)
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
			return inspectRepo(cmd, std, repo, func(ctx context.Context, inspector *locking.Inspector) error {
				status, err := inspector.Status(ctx, repo.Key())
				if err != nil {
					return err
				}
				detail := lockDetail(server.NewLock(status))
				return out.Show(std, detail, detail.Table)
			})
		},
	}, config.Common, &out)
}

func newLocksReleaseCommand(std term.Streams) *cobra.Command {
	var fence uint64
	var out term.Output
	cmd := &cobra.Command{
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
			return inspectRepo(cmd, std, repo, func(ctx context.Context, inspector *locking.Inspector) error {
				if fence == 0 {
					status, err := inspector.Status(ctx, repo.Key())
					if err != nil {
						return err
					}
					if !status.Held {
						return fmt.Errorf("%s is not held; there is nothing to release", repo)
					}
					fence = status.Fence
				}
				former, err := inspector.ForceRelease(ctx, repo.Key(), fence)
				if errors.Is(err, locking.ErrNotHeld) {
					return fmt.Errorf("%s is not held with fence %d; see lockstep locks show %s", repo, fence, repo)
				}
				if err != nil {
					return err
				}
				taken := released{repo.String(), fence, server.Party{
					Worker: former.Worker, Job: former.Job, Operation: former.Operation,
				}}
				return out.Show(std, taken, taken.Table)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().Uint64Var(&fence, "fence", 0, "`fence` of the lease to release (default: that of the current lease)")
	out.Add(cmd)
	return cmd
}

// inspectRepo runs fn with a lock inspector of the cell of a repository.
func inspectRepo(
	cmd *cobra.Command, std term.Streams, repo events.RepoPath, fn func(context.Context, *locking.Inspector) error,
) error {
	return onRepo(cmd, std, locksTimeout, repo, inspecting(fn))
}

const locksTimeout = 30 * time.Second

func inspecting(
	fn func(context.Context, *locking.Inspector) error,
) func(context.Context, config.Config, redis.UniversalClient) error {
	return func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
		inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: cfg.Namespace().Locks()})
		if err != nil {
			return err
		}
		return fn(ctx, inspector)
	}
}

var lockColumns = term.List[server.Lock]{
	Columns: []term.Column[server.Lock]{
		{Head: "REPOSITORY", Text: func(l server.Lock) string { return l.Repo }},
		{Head: "CELL", Text: func(l server.Lock) string { return l.Cell }, Optional: true},
		{Head: "OPERATION", Text: func(l server.Lock) string { return l.Holder.Operation }},
		{Head: "JOB", Text: func(l server.Lock) string { return l.Holder.Job }},
		{Head: "WORKER", Text: func(l server.Lock) string { return l.Holder.Worker }},
		{Head: "SINCE", Time: func(l server.Lock) time.Time { return timeOf(l.Since) }},
		{Head: "WAITING", Text: func(l server.Lock) string { return strconv.Itoa(len(l.Waiters)) }},
		{Head: "REMAINING", Text: func(l server.Lock) string { return remaining(l).String() }, Wide: true},
		{Head: "FENCE", Text: func(l server.Lock) string { return strconv.FormatUint(l.Fence, 10) }, Wide: true},
	},
	Name:  func(l server.Lock) string { return l.Repo },
	Empty: "no leases are held: no worker is at work on a repository; see lockstep status",
}

type lockDetail server.Lock

func (l lockDetail) Table(w io.Writer) {
	fmt.Fprintf(w, "repository\t%s\n", l.Repo)
	if l.Held {
		fmt.Fprintf(w, "held by\tjob %s (%s) on %s\n", l.Holder.Job, l.Holder.Operation, l.Holder.Worker)
		fmt.Fprintf(w, "since\t%s\n", term.When(*l.Since))
		fmt.Fprintf(w, "remaining\t%v\n", remaining(server.Lock(l)))
	} else {
		fmt.Fprintf(w, "held by\tnobody\n")
	}
	if l.Fence != 0 {
		fmt.Fprintf(w, "fence\t%d\n", l.Fence)
	}
	waiterRows(w, l.Waiters)
}

func waiterRows(w io.Writer, waiters []server.Party) {
	for i, waiter := range waiters {
		fmt.Fprintf(w, "waits, %d\tjob %s (%s) on %s\n", i+1, waiter.Job, waiter.Operation, waiter.Worker)
	}
}

func remaining(l server.Lock) time.Duration {
	return (time.Duration(l.RemainingMS) * time.Millisecond).Round(100 * time.Millisecond)
}

type released server.Released

func (r released) Table(w io.Writer) {
	fmt.Fprintf(w, "released\t%s (fence %d), held by job %s (%s) on %s\n", r.Repo, r.Fence, r.From.Job,
		r.From.Operation, r.From.Worker)
}
