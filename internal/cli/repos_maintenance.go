package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/term"
	"lockstep/internal/volume"
	"lockstep/internal/volume/fsck"
	"lockstep/locking"
)

// newMaintenanceCommand sets up a command that runs fn on the selected repositories. fn returns a table with
// a row for each, and the number of failures. failed is the end of the message "2 of 3 repositories …".
func newMaintenanceCommand[T term.Table](std term.Streams, cmd *cobra.Command, failed func() string,
	fn func(context.Context, maintainer, []events.RepoPath) (table T, rows, failures int)) *cobra.Command {
	var flags maintenanceFlags
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		repos, err := flags.repos(args)
		if err != nil {
			return err
		}
		return flags.onVolume(cmd, std, func(ctx context.Context, m maintainer) error {
			table, rows, failures := fn(ctx, m, repos)
			if err := flags.out.Show(std, table, table.Table); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if failures > 0 {
				return fmt.Errorf("%d of %d repositories %s", failures, rows, failed())
			}
			return nil
		})
	}
	flags.Add(cmd)
	return cmd
}

func newReposGCCommand(std term.Streams) *cobra.Command {
	return newMaintenanceCommand(std, &cobra.Command{
		Use:   "gc [owner/name…]",
		Short: "Free disk space of repositories and measure them",
		Long: "Drop trees past their grace period, leftovers of crashed workers and unneeded objects, and measure\n" +
			"the rest: now instead of at the next sync or by the service, every two tree-grace. Published trees,\n" +
			"pinned trees and adopted clones are kept.\n" + progressHelp,
		Example: "  lockstep repos gc acme/widgets --root /srv/repos --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos gc --all --offline --root /srv/repos",
	}, func() string { return "could not be collected" }, func(
		ctx context.Context, m maintainer, repos []events.RepoPath,
	) (collectedList, int, int) {
		list, failures := m.collectAll(ctx, repos)
		return list, len(list), failures
	})
}

// collectAll garbage-collects the given repositories, or the whole volume if there are none.
func (m maintainer) collectAll(ctx context.Context, repos []events.RepoPath) (list collectedList, failed int) {
	var total volume.Total
	list = collectedList{}
	failed = m.each(ctx, repos, func(repo events.RepoPath, err error) error {
		var result volume.GCResult
		if err == nil {
			result, err = app.Collect(ctx, m.volume, m.locker, repo, app.CollectOptions{IfHeld: locking.WaitInLine, Full: true})
		}
		total.Add(result.Usage)
		list = append(list, collected{
			Repo: repo.String(), onDisk: newOnDisk(result.Usage, 0), Freed: result.Freed, Dropped: result.Trees,
			Error: errorText(err),
		})
		return err
	})
	if len(repos) == 0 && failed == 0 && ctx.Err() == nil {
		if err := m.volume.SweepLeftovers(); err != nil {
			failed++
			list = append(list, collected{Error: errorText(err), onDisk: &onDisk{}})
		}
		total.Collected = time.Now()
		_ = m.volume.SetTotal(total) // otherwise the next worker does
	}
	return list, failed
}

// collected is the outcome of gc for one repository.
type collected struct {
	Repo string `json:"repo"`
	*onDisk
	Freed   int64  `json:"freed"` // bytes
	Dropped int    `json:"dropped_trees"`
	Error   string `json:"error,omitempty"`
}

type collectedList []collected

func (l collectedList) Table(w io.Writer) {
	fmt.Fprintln(w, "REPOSITORY\tSIZE\tFILES\tTREES\tFREED\tADOPTED\tERROR")
	for _, c := range l {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", c.Repo, volume.BytesText(c.Bytes), c.Files, c.Trees,
			volume.BytesText(c.Freed), c.adopted(), term.Dash(c.Error))
	}
}

func newReposVerifyCommand(std term.Streams) *cobra.Command {
	var repair bool
	cmd := newMaintenanceCommand(std, &cobra.Command{
		Use:   "verify [owner/name…]",
		Short: "Check all data of repositories on the volume",
		Long: "Inflate and hash every object, follow all refs and compare every tree with its commit, file by file.\n" +
			"This holds the lease of one repository at a time, so its syncs wait. --repair marks damage: the next\n" +
			"sync of each ref builds a new tree and fetches damaged objects again; readers keep the current tree\n" +
			"until then. Exit code 1 if anything is damaged.\n" + progressHelp,
		Example: "  lockstep repos verify --all --root /srv/repos --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos verify acme/widgets --repair --root /srv/repos --redis redis://127.0.0.1:6379",
	}, func() string {
		if repair {
			return "damaged and marked; sync them"
		}
		return "damaged; run with --repair, then sync them"
	}, func(ctx context.Context, m maintainer, repos []events.RepoPath) (verifiedList, int, int) {
		list, failures := m.verifyAll(ctx, repos, repair)
		return list, len(list), failures
	})
	cmd.Flags().BoolVar(&repair, "repair", false, "mark damaged data for replacement by the next sync")
	return cmd
}

func (m maintainer) verifyAll(
	ctx context.Context, repos []events.RepoPath, repair bool,
) (list verifiedList, failed int) {
	list = verifiedList{}
	failed = m.each(ctx, repos, func(repo events.RepoPath, err error) error {
		v := verified{Repo: repo.String()}
		if err == nil {
			err = app.WithLease(ctx, m.volume, m.locker, repo, "verify", locking.WaitInLine, func(
				ctx context.Context, fence uint64,
			) error {
				v.Report, err = m.volume.Verify(ctx, volume.VerifyRequest{Repo: repo, Fence: fence, Repair: repair})
				return err
			})
			if len(repos) == 0 && events.ClassOf(err) == events.ClassNotFound {
				return nil // removed since it was listed
			}
		}
		v.Error = errorText(err)
		if err == nil && v.Found > 0 {
			err = fmt.Errorf("%s has %d problems", repo, v.Found)
		}
		if v.Problems == nil {
			v.Problems = []fsck.Problem{}
		}
		list = append(list, v)
		return err
	})
	return list, failed
}

// verified is the outcome of verify for one repository.
type verified struct {
	Repo string `json:"repo"`
	fsck.Report
	Error string `json:"error,omitempty"`
}

type verifiedList []verified

func (l verifiedList) Table(w io.Writer) {
	fmt.Fprintln(w, "REPOSITORY\tTREES\tFILES\tOBJECTS\tREAD\tPROBLEMS\tERROR")
	for _, v := range l {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%d\t%s\n", v.Repo, v.Trees, v.Files, v.Objects, volume.BytesText(v.Bytes),
			v.Found, term.Dash(v.Error))
		for _, p := range v.Problems {
			fmt.Fprintf(w, "  %q: %s\n", p.Path, p.What)
		}
		if more := v.Found - len(v.Problems); more > 0 {
			fmt.Fprintf(w, "  and %d more\n", more)
		}
		for _, marked := range v.Marked {
			fmt.Fprintf(w, "  marked: %q\n", marked)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return term.OneLine(err)
}
