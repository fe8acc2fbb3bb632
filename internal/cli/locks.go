package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/server"
	"lockstep/internal/status"
	"lockstep/locking"
)

func newLocksCommand(std term.Streams) *cobra.Command {
	return newGroup("locks", "Show or release repository leases", "",
		newLocksListCommand(std), newLocksShowCommand(std), newLocksReleaseCommand(std))
}

func newLocksListCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:     "ls",
		Short:   "List held leases",
		Example: "  lockstep locks ls --redis redis://127.0.0.1:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return inspect(cmd, std, func(ctx context.Context, inspector *locking.Inspector) error {
				held, err := inspector.List(ctx)
				if err != nil {
					return err
				}
				list := make(lockList, 0, len(held))
				for _, status := range held {
					list = append(list, server.NewLock(status))
				}
				return out.Show(std, list, list.Table)
			})
		},
	}, config.Common, &out)
}

func newLocksShowCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:               "show owner/name",
		Short:             "Show one lease, its holder and its wait queue",
		Example:           "  lockstep locks show acme/widgets --redis redis://127.0.0.1:6379",
		Args:              term.WrongUse(term.OneArg),
		ValidArgsFunction: completeFirst(std, repositories),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, err := events.ParseRepoPath(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			return inspect(cmd, std, func(ctx context.Context, inspector *locking.Inspector) error {
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
		Long: "Release a lease by force: its holder's work is cancelled, and after a short delay the next in the wait queue gets\n" +
			"the lease. With --fence, as shown by locks show, only that lease is released; without, whichever is held now.",
		Example:           "  lockstep locks release acme/widgets --fence 1795223511284000 --redis redis://127.0.0.1:6379",
		Args:              term.WrongUse(term.OneArg),
		ValidArgsFunction: completeFirst(std, leases),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, err := events.ParseRepoPath(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			return inspect(cmd, std, func(ctx context.Context, inspector *locking.Inspector) error {
				if fence == 0 {
					status, err := inspector.Status(ctx, repo.Key())
					if err != nil {
						return err
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
				taken := released{repo.String(), fence, server.Party{Worker: former.Worker, Job: former.Job, Operation: former.Operation}}
				return out.Show(std, taken, taken.Table)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().Uint64Var(&fence, "fence", 0, "`fence` of the lease to release (default: that of the current lease)")
	out.Add(cmd)
	return cmd
}

// inspect runs fn with a lock inspector of the configured Redis.
func inspect(cmd *cobra.Command, std term.Streams, fn func(context.Context, *locking.Inspector) error) error {
	return onRedis(cmd, std, 30*time.Second, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
		inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: cfg.Namespace().Locks()})
		if err != nil {
			return err
		}
		return fn(ctx, inspector)
	})
}

type lockList []server.Lock

func (l lockList) Table(w io.Writer) {
	fmt.Fprintln(w, "REPOSITORY\tOPERATION\tJOB\tWORKER\tHELD FOR\tREMAINING\tWAITING\tFENCE")
	for _, lock := range l {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%v\t%d\t%d\n", lock.Repo, lock.Holder.Operation, lock.Holder.Job, lock.Holder.Worker,
			status.Duration(time.Since(*lock.Since)), remaining(server.Lock(lock)), len(lock.Waiters), lock.Fence)
	}
}

type lockDetail server.Lock

func (l lockDetail) Table(w io.Writer) {
	fmt.Fprintf(w, "repository\t%s\n", l.Repo)
	if l.Held {
		fmt.Fprintf(w, "held by\tjob %s (%s) on %s\n", l.Holder.Job, l.Holder.Operation, l.Holder.Worker)
		fmt.Fprintf(w, "since\t%s (%s)\n", l.Since.Format(time.RFC3339), status.Duration(time.Since(*l.Since)))
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
	fmt.Fprintf(w, "released\t%s (fence %d), held by job %s (%s) on %s\n", r.Repo, r.Fence, r.From.Job, r.From.Operation, r.From.Worker)
}
