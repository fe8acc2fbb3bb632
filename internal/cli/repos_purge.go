package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/changes"
	"lockstep/internal/git/object"
	"lockstep/internal/term"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// purgeOptions are the flags of repos purge.
type purgeOptions struct {
	drop, force bool
	timeout     time.Duration // for each repository
}

func newReposPurgeCommand(std term.Streams) *cobra.Command {
	var commit string
	var opts purgeOptions
	cmd := newMaintenanceCommand(std, &cobra.Command{
		Use:   "purge [owner/name…] --commit COMMIT",
		Short: "Replace all copies of repositories after a secret was pushed",
		Long: "Fetch the repositories again, publish trees built from that, and delete everything that the volume\n" +
			"had of them before: trees, stores, submodules and LFS objects. First rewrite history at the forge,\n" +
			"so that no ref has COMMIT. Readers see no gap. This needs running workers, watches, a remote that\n" +
			"answers, and up to twice the disk space meanwhile. Trees that readers pin stay until these end, or\n" +
			"with --force are deleted. --drop deletes the copies at once: watched repositories are missing until\n" +
			"a poll, which it requests, has fetched them again; others stay removed. A purged result notifies\n" +
			"apps and followers of COMMIT. Exit code 1 unless all repositories are free of it.\n" + progressHelp,
		Example: "  lockstep repos purge acme/widgets --commit d670460b4b4aece5915caf5c68d12f560a9fe3e4 --root " +
			"/srv/repos --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos purge acme/widgets --commit d670460b4b4aece5915caf5c68d12f560a9fe3e4 --drop --offline " +
			"--root /srv/repos",
		PreRunE: func(*cobra.Command, []string) error {
			if !object.IsID(commit) || object.ParseID(commit).IsZero() {
				return term.UsageError(errors.New("--commit: want the full hash of the commit that introduced the " +
					"secret, of 40 or 64 hexadecimal digits"))
			}
			return nil
		},
	}, func() string { return "are not purged" }, func(
		ctx context.Context, m maintainer, repos []events.RepoPath,
	) (purgedList, int, int) {
		list := purgedList{}
		failures := m.each(ctx, repos, func(repo events.RepoPath, err error) error {
			p := purged{Repo: repo.String(), Commit: object.ParseID(commit).String()}
			if err == nil {
				p.Pinned, err = m.purge(ctx, repo, p.Commit, opts)
			}
			p.Purged, p.Error = err == nil, errorText(err)
			list = append(list, p)
			return err
		})
		return list, len(list), failures
	})
	cmd.Flags().StringVar(&commit, "commit", "", "full hash of the `commit` that introduced the secret")
	cmd.Flags().BoolVar(&opts.drop, "drop", false, "delete the copies at once, without fetching new ones first")
	cmd.Flags().BoolVar(&opts.force, "force", false, "also delete old trees that readers pin")
	cmd.Flags().DurationVar(&opts.timeout, "timeout", 10*time.Minute,
		"maximum time to wait for the new copies of one repository")
	return cmd
}

// purge replaces or drops the copies of one repository. It returns the trees that are still pinned.
func (m maintainer) purge(
	ctx context.Context, repo events.RepoPath, commit string, opts purgeOptions,
) (pinned []string, err error) {
	if m.redis == nil && !opts.drop {
		return nil, term.UsageError(errors.New("--offline needs --drop, as workers fetch the new copies"))
	}
	withLease := func(fn func(ctx context.Context, fence uint64) error) error {
		return app.WithLease(ctx, m.volume, m.locker, repo, "purge", locking.WaitInLine, fn)
	}
	err = withLease(func(ctx context.Context, fence uint64) error { return m.volume.Purge(ctx, repo, fence, commit) })
	if err != nil && !(opts.drop && events.ClassOf(err) == events.ClassNotFound) { // apps and followers may still have it
		return nil, err
	}
	if !opts.drop {
		if err := m.awaitCopies(ctx, repo, opts.timeout); err != nil {
			return nil, fmt.Errorf("no new copies, so the old ones are still published: %w; "+
				"run this again once workers run and the remote answers, or delete the old ones with --drop", err)
		}
	}
	err = withLease(func(ctx context.Context, fence uint64) error {
		pinned, err = m.discard(ctx, repo, fence, commit, opts)
		return err
	})
	if opts.drop && m.redis != nil && (err == nil || len(pinned) > 0) {
		_, polled := m.requestPoll(ctx, repo)
		err = cmp.Or(err, polled)
	}
	return pinned, err
}

// awaitCopies requests a poll, and waits until the syncs that it requests have replaced everything published.
func (m maintainer) awaitCopies(ctx context.Context, repo events.RepoPath, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	entry, err := m.requestPoll(ctx, repo)
	if err != nil {
		return err
	}
	polled, err := changes.NewTracker(m.redis, m.namespace).Wait(ctx, entry)
	if ctx.Err() != nil {
		return fmt.Errorf("it was not polled within %v: see lockstep repos show %s", timeout, repo)
	}
	if err != nil {
		return err
	}
	if polled.Result.Type == events.ResultFailed {
		return errors.New(polled.Result.Error)
	}
	for {
		left, err := m.volume.PurgeLeft(repo)
		if err != nil || len(left.Names) == 0 {
			return err
		}
		if polled.Result.Due == 0 {
			return errors.New("nothing of it is to be synced: it is not watched, or its new commit is refused; " +
				"see lockstep repos show")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%q was not synced within %v: see lockstep repos show %s", left.Names[0], timeout, repo)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (m maintainer) requestPoll(ctx context.Context, repo events.RepoPath) (entry string, err error) {
	change, err := events.NewChange(events.Change{Type: events.ChangeDue, Repo: repo, Source: "/lockstep/cli"})
	if err != nil {
		return "", err
	}
	return changes.Publish(ctx, m.redis, m.namespace, change)
}

// discard deletes the old copies, those that are published only if the copies are dropped, and notifies apps
// and followers. It returns the trees that are still pinned.
func (m maintainer) discard(
	ctx context.Context, repo events.RepoPath, fence uint64, commit string, opts purgeOptions,
) ([]string, error) {
	rounds := 1
	if opts.drop {
		rounds = 2 // after the first, nothing pins its trees any more
	}
	for range rounds {
		if opts.drop {
			_, err := m.volume.Remove(ctx, volume.RemoveRequest{Repo: repo, Fence: fence, Force: true})
			arePinned := events.ClassOf(err) == events.ClassBusy && !errors.Is(err, volume.ErrStale) // the names are gone
			if err != nil && !arePinned {
				return nil, err
			}
		}
		if _, err := m.volume.GC(ctx,
			volume.GCRequest{Repo: repo, Fence: fence, Full: true, EndPins: opts.force}); err != nil {
			return nil, err
		}
	}
	left, err := m.volume.PurgeLeft(repo)
	if err != nil {
		return nil, err
	}
	if len(left.Pinned) > 0 {
		return left.Pinned, errors.New("readers pin old trees: end them (see lsof) and run this again, or use --force")
	}
	if len(left.Paths) > 0 {
		return nil, fmt.Errorf("%q cannot be deleted: check who owns it, and run this again", left.Paths[0])
	}
	has, err := m.volume.HasCommit(repo, commit)
	if err != nil {
		return nil, err
	}
	if has {
		return nil, errors.New("the new copies have the commit: rewrite the history of all refs at the forge that " +
			"have it, and run this again")
	}
	if m.redis == nil {
		return nil, nil
	}
	err = changes.PublishResult(ctx, m.redis, m.namespace, events.Result{
		ID: fmt.Sprintf("purge/%s/%d", repo.Key(), fence), Type: events.ResultPurged, Source: "/lockstep/cli",
		Time: time.Now(), Repo: repo, Fence: fence, Commit: commit,
	})
	if err != nil {
		return nil, fmt.Errorf("purged, but apps and followers are not notified: run this again: %w", err)
	}
	return nil, nil
}

// purged is the outcome of purge for one repository.
type purged struct {
	Repo   string   `json:"repo"`
	Commit string   `json:"commit"`
	Purged bool     `json:"purged"`
	Pinned []string `json:"pinned,omitempty"` // trees, relative to the root
	Error  string   `json:"error,omitempty"`
}

type purgedList []purged

func (l purgedList) Table(w io.Writer) {
	fmt.Fprintln(w, "REPOSITORY\tPURGED\tERROR")
	for _, p := range l {
		fmt.Fprintf(w, "%s\t%t\t%s\n", p.Repo, p.Purged, term.Dash(p.Error))
		for _, tree := range p.Pinned {
			fmt.Fprintf(w, "  pinned: %s\n", term.Printable(tree))
		}
	}
}
