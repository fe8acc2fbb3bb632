package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/volume"
	"lockstep/internal/volume/fsck"
	"lockstep/locking"
)

func newReposGCCommand(std term.Streams) *cobra.Command {
	var flags careFlags
	cmd := &cobra.Command{
		Use:   "gc [owner/name…]",
		Short: "Free what repositories need no more, and measure them",
		Long: "Drop trees past their grace, what crashed workers have left and objects that nothing needs, and measure\n" +
			"what remains: now, instead of at the next sync or patrol. What is published, and what readers have pinned,\n" +
			"stays; so do adopted clones, which are yours to delete.",
		Example: "  lockstep repos gc acme/widgets --root /srv/repos --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos gc --all --offline --root /srv/repos",
		ValidArgsFunction: completeFrom(std, repositories),
		RunE: func(cmd *cobra.Command, args []string) error {
			repos, err := flags.repos(args)
			if err != nil {
				return err
			}
			return flags.onVolume(cmd, std, func(ctx context.Context, c caretaker) error {
				list, failed := c.collectAll(ctx, repos)
				if err := flags.out.Show(std, list, list.Table); err != nil {
					return err
				}
				return partly(ctx, failed, len(list), "not tidied")
			})
		},
	}
	flags.Add(cmd)
	return cmd
}

// collectAll tidies the repositories named, or all: then the volume too.
func (c caretaker) collectAll(ctx context.Context, repos []events.RepoPath) (list collectedList, failed int) {
	var total volume.Total
	list = collectedList{}
	failed = c.each(ctx, repos, func(repo events.RepoPath, err error) error {
		var result volume.GCResult
		if err == nil {
			result, err = app.Collect(ctx, c.volume, c.locker, repo, app.CollectOptions{Operation: "gc", IfHeld: locking.WaitInLine, Full: true})
		}
		total.Add(result.Usage)
		list = append(list, collected{Repo: repo.String(), onDisk: newOnDisk(result.Usage, 0), Freed: result.Freed, Dropped: result.Trees, Error: errorText(err)})
		return err
	})
	if len(repos) == 0 && failed == 0 && ctx.Err() == nil {
		if err := c.volume.SweepLeftovers(); err != nil {
			failed++
			list = append(list, collected{Error: errorText(err), onDisk: &onDisk{}})
		}
		total.Patrolled = time.Now()
		_ = c.volume.SetTotal(total) // the next patrol does
	}
	return list, failed
}

// collected is what gc has done with one repository.
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
	var flags careFlags
	var repair bool
	cmd := &cobra.Command{
		Use:   "verify [owner/name…]",
		Short: "Read all that repositories have on the volume, and check it",
		Long: "Inflate and hash every object, follow what refs name, and compare every tree with its commit, file for file.\n" +
			"Each repository is held meanwhile: its syncs wait. With --repair what is damaged is marked: the next sync of\n" +
			"each of its refs builds a new tree, from objects fetched anew if need be; until then readers keep what there is.\n" +
			"Exit code 1 when something is damaged.",
		Example: "  lockstep repos verify --all --root /srv/repos --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos verify acme/widgets --repair --root /srv/repos --redis redis://127.0.0.1:6379",
		ValidArgsFunction: completeFrom(std, repositories),
		RunE: func(cmd *cobra.Command, args []string) error {
			repos, err := flags.repos(args)
			if err != nil {
				return err
			}
			return flags.onVolume(cmd, std, func(ctx context.Context, c caretaker) error {
				list, failed := c.verifyAll(ctx, repos, repair)
				if err := flags.out.Show(std, list, list.Table); err != nil {
					return err
				}
				what := "damaged; run with --repair, then sync them"
				if repair {
					what = "damaged and marked; sync them"
				}
				return partly(ctx, failed, len(list), what)
			})
		},
	}
	flags.Add(cmd)
	cmd.Flags().BoolVar(&repair, "repair", false, "mark what is damaged, so that the next sync replaces it")
	return cmd
}

func (c caretaker) verifyAll(ctx context.Context, repos []events.RepoPath, repair bool) (list verifiedList, failed int) {
	list = verifiedList{}
	failed = c.each(ctx, repos, func(repo events.RepoPath, err error) error {
		v := verified{Repo: repo.String()}
		if err == nil {
			err = app.WithLease(ctx, c.volume, c.locker, repo, "verify", locking.WaitInLine, func(ctx context.Context, fence uint64) error {
				v.Report, err = c.volume.Verify(ctx, volume.VerifyRequest{Repo: repo, Fence: fence, Repair: repair})
				return err
			})
			if len(repos) == 0 && events.ClassOf(err) == events.ClassNotFound {
				return nil // it has gone since it was listed
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

// verified is what verify has found of one repository.
type verified struct {
	Repo string `json:"repo"`
	fsck.Report
	Error string `json:"error,omitempty"`
}

type verifiedList []verified

func (l verifiedList) Table(w io.Writer) {
	fmt.Fprintln(w, "REPOSITORY\tTREES\tFILES\tOBJECTS\tREAD\tPROBLEMS\tERROR")
	for _, v := range l {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%d\t%s\n", v.Repo, v.Trees, v.Files, v.Objects, volume.BytesText(v.Bytes), v.Found, term.Dash(v.Error))
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

// partly is the error of a subcommand that some repositories have failed.
func partly(ctx context.Context, failed, all int, what string) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case failed > 0:
		return fmt.Errorf("%d of %d repositories %s", failed, all, what)
	}
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return term.OneLine(err)
}
