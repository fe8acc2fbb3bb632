package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/git/object"
	"lockstep/internal/term"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// purgeOptions are the flags of repos purge.
type purgeOptions struct {
	commit      string
	drop, force bool
	timeout     time.Duration // for each repository
}

func newReposPurgeCommand(std term.Streams) *cobra.Command {
	var opts purgeOptions
	cmd := newMaintenanceCommand(std, &cobra.Command{
		Use:   "purge [owner/name…] --commit COMMIT",
		Short: "Replace all copies of repositories after a secret was pushed",
		Long: "Fetch the repositories again, publish trees built from that, and delete everything that the volume had of them before:\n" +
			"trees, stores, submodules and LFS objects. First rewrite history at the forge, so that no ref has COMMIT. Readers see no\n" +
			"gap. This needs running workers, a remote that answers, and up to twice the disk space meanwhile. It changes nothing while\n" +
			"readers pin trees, unless --force deletes these, too. --drop deletes the copies at once: watched\n" +
			"repositories are missing until a poll, which it requests, has fetched them again; others stay removed. A purged result\n" +
			"notifies apps and followers of COMMIT. Exit code 1 unless all repositories are free of it.",
		Example: "  lockstep repos purge acme/widgets --commit d670460b4b4aece5915caf5c68d12f560a9fe3e4 --root /srv/repos --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos purge acme/widgets --commit d670460b4b4aece5915caf5c68d12f560a9fe3e4 --drop --offline --root /srv/repos",
		PreRunE: func(*cobra.Command, []string) error {
			if !object.IsID(opts.commit) || object.ParseID(opts.commit).IsZero() {
				return term.UsageError(errors.New("--commit: want the full hash of the commit that introduced the secret, of 40 or 64 hexadecimal digits"))
			}
			return nil
		},
	}, func() string { return "are not purged" }, func(ctx context.Context, m maintainer, repos []events.RepoPath) (purgedList, int, int) {
		list := purgedList{}
		failures := m.each(ctx, repos, func(repo events.RepoPath, err error) error {
			p := purged{Repo: repo.String(), Commit: object.ParseID(opts.commit).String()}
			if err == nil {
				err = m.purge(ctx, repo, opts, &p)
			}
			p.Purged, p.Error = err == nil, errorText(err)
			list = append(list, p)
			return err
		})
		return list, len(list), failures
	})
	cmd.Flags().StringVar(&opts.commit, "commit", "", "full hash of the `commit` that introduced the secret")
	cmd.Flags().BoolVar(&opts.drop, "drop", false, "delete the copies at once, without fetching new ones first")
	cmd.Flags().BoolVar(&opts.force, "force", false, "also delete trees that readers pin")
	cmd.Flags().DurationVar(&opts.timeout, "timeout", 10*time.Minute, "maximum time to wait for the new copies of one repository")
	return cmd
}

// purge replaces or drops the copies of one repository.
func (m maintainer) purge(ctx context.Context, repo events.RepoPath, opts purgeOptions, p *purged) error {
	withLease := func(fn func(ctx context.Context, fence uint64) error) error {
		return app.WithLease(ctx, m.volume, m.locker, repo, "purge", locking.WaitInLine, fn)
	}
	if opts.drop {
		err := withLease(func(ctx context.Context, fence uint64) error {
			if _, err := m.volume.Remove(ctx, volume.RemoveRequest{Repo: repo, Fence: fence, Force: true, EndPins: opts.force}); err != nil {
				return err
			}
			return m.finishPurge(ctx, repo, fence, p)
		})
		if err == nil && m.redis != nil {
			_, err = m.request(ctx, events.Change{Type: events.ChangeDue, Repo: repo})
		}
		return err
	}
	if m.redis == nil {
		return term.UsageError(errors.New("--offline needs --drop, as workers fetch the new copies"))
	}
	err := withLease(func(ctx context.Context, fence uint64) (err error) {
		p.Pinned, err = m.volume.Purge(ctx, volume.PurgeRequest{Repo: repo, Fence: fence, Force: opts.force})
		return err
	})
	if err == nil && len(p.Pinned) > 0 {
		err = errors.New("readers pin trees, so nothing is changed: end them (see lsof) and run this again, or use --force")
	}
	if err == nil {
		err = m.awaitCopies(ctx, repo, opts.timeout)
	}
	if err != nil {
		return err
	}
	return withLease(func(ctx context.Context, fence uint64) error {
		if _, err := m.volume.GC(ctx, volume.GCRequest{Repo: repo, Fence: fence, Full: true}); err != nil {
			return err
		}
		return m.finishPurge(ctx, repo, fence, p)
	})
}

func (m maintainer) request(ctx context.Context, change events.Change) (entry string, err error) {
	change.Source = "/lockstep/cli"
	if change, err = events.NewChange(change); err != nil {
		return "", err
	}
	return app.Enqueue(ctx, m.redis, m.namespace, change)
}

// awaitCopies requests a poll, and waits until the syncs that it requests have replaced everything published.
func (m maintainer) awaitCopies(ctx context.Context, repo events.RepoPath, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	entry, err := m.request(ctx, events.Change{Type: events.ChangeDue, Repo: repo})
	if err != nil {
		return err
	}
	tracker, err := app.NewTracker(m.redis, m.namespace)
	if err != nil {
		return err
	}
	polled, err := tracker.Wait(ctx, entry)
	if err == nil && polled.Result.Type == events.ResultFailed {
		err = errors.New(polled.Result.Error)
	}
	if err == nil && polled.Result.Due == 0 {
		err = m.requestSyncs(ctx, repo)
	}
	for err == nil {
		var left volume.PurgeLeft
		if left, err = m.volume.PurgeLeft(repo); err != nil || len(left.Names) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			err = fmt.Errorf("%q was not synced within %v: see lockstep repos show %s", left.Names[0], timeout, repo)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("no new copies, so the old ones are still published: %w; run this again once workers run and the remote answers, or delete the old ones with --drop", err)
}

// requestSyncs requests a sync, without a credential, of each ref of a repository without watches.
func (m maintainer) requestSyncs(ctx context.Context, repo events.RepoPath) error {
	published, _, err := m.volume.Published(repo)
	if err != nil {
		return err
	}
	for ref := range published.Incomplete {
		if ref == published.Plain {
			ref = events.Ref{}
		}
		sync := events.Change{Type: events.ChangePushed, Repo: repo, URL: published.Remote, Ref: ref}
		if _, err := m.request(ctx, sync); err != nil {
			return err
		}
	}
	return nil
}

// finishPurge checks that nothing is left of the old copies, and notifies apps and followers.
func (m maintainer) finishPurge(ctx context.Context, repo events.RepoPath, fence uint64, p *purged) error {
	left, err := m.volume.PurgeLeft(repo)
	if err != nil {
		return err
	}
	if p.Pinned = left.Pinned; len(left.Pinned) > 0 {
		return errors.New("readers pin old trees: the first sync after these have ended deletes them; or use --force")
	}
	if len(left.Paths) > 0 {
		return fmt.Errorf("%q cannot be deleted: check who owns it, and run this again", left.Paths[0])
	}
	has, err := m.volume.HasCommit(repo, p.Commit)
	if err != nil {
		return err
	}
	if has {
		return errors.New("the new copies have the commit: rewrite the history of all refs at the forge that have it, and run this again")
	}
	if m.redis == nil {
		return nil
	}
	if err := app.AnnouncePurge(ctx, m.redis, m.namespace, repo, fence, p.Commit); err != nil {
		return fmt.Errorf("purged, but apps and followers are not notified: run this again: %w", err)
	}
	return nil
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
