package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/config"
	"lockstep/internal/term"
)

// changeFlags are flags that describe a change.
type changeFlags struct {
	repo, ref, app, credential, after, id, depth, submodules string
	pin                                                      bool

	to events.RepoPath // new path of a moved repository
}

func (f *changeFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.repo, "repo", "", "repository `owner/name` (default: from the URL)")
	flags.StringVar(&f.ref, "ref", "", "branch, full `ref`, or commit of 40 or 64 digits to sync (default: "+
		"the remote's default branch)")
	flags.StringVar(&f.depth, "depth", "", "number of `commits` of history, or full (default: one commit)")
	flags.StringVar(&f.submodules, "submodules", "off",
		"`off, best-effort or required`: whether the tree has the files of its submodules")
	flags.StringVar(&f.app, "app", "", "`app` to sync for")
	flags.StringVar(&f.credential, "credential", "", "`name` of the credential")
}

// change returns the change, or a usage error.
func (f *changeFlags) change(kind events.ChangeType, url string) (events.Change, error) {
	c := events.Change{
		ID: f.id, Type: kind, Source: "/lockstep/cli", URL: url, To: f.to, App: f.app, Credential: f.credential,
		After: f.after, Pin: f.pin,
	}
	if c.ID == "" {
		c.ID = uuid.NewString()
	}
	var err error
	if f.repo != "" {
		if c.Repo, err = events.ParseRepoPath(f.repo); err != nil {
			return c, term.UsageError(fmt.Errorf("--repo: %w", err))
		}
	}
	if c.Ref, err = events.ParseRef(f.ref); err != nil {
		return c, term.UsageError(fmt.Errorf("--ref: %w", err))
	}
	if c.Depth, err = events.ParseDepth(f.depth); err != nil {
		return c, term.UsageError(fmt.Errorf("--depth: %w", err))
	}
	if c.Submodules, err = events.ParseSubmodules(f.submodules); err != nil {
		return c, term.UsageError(fmt.Errorf("--%w", err))
	}
	if c, err = events.NewChange(c); err != nil {
		return c, term.UsageError(err)
	}
	return c, nil
}

// publishFlags are flags that describe a change of any kind.
type publishFlags struct {
	changeFlags
	removed, due, force bool
	movedTo, onBusy     string
}

// change returns the change, or a usage error.
func (f *publishFlags) change(url string) (change events.Change, err error) {
	kind := events.ChangePushed
	switch {
	case f.removed:
		kind = events.ChangeRemoved
	case f.due:
		kind = events.ChangeDue
	case f.movedTo != "":
		kind = events.ChangeMoved
		if f.to, err = events.ParseRepoPath(f.movedTo); err != nil {
			return change, term.UsageError(fmt.Errorf("--moved-to: %w", err))
		}
	}
	if change, err = f.changeFlags.change(kind, url); err != nil {
		return change, err
	}
	change.Force, change.OnBusy = f.force, events.BusyPolicy(f.onBusy)
	change, err = events.NewChange(change)
	return change, term.UsageError(err)
}

func newPublishCommand(std term.Streams) *cobra.Command {
	var (
		flags   publishFlags
		out     term.Output
		wait    bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "publish URL",
		Short: "Publish one change",
		Long: "Publish one change to the stream that workers read. With --wait, wait for its result and print that,\n" +
			"with progress as sync shows it, and in its output forms; otherwise return at once.",
		Example: "  lockstep publish https://example.com/acme/widgets.git --redis redis://127.0.0.1:6379\n" +
			"  lockstep publish https://example.com/acme/widgets.git --wait --timeout 1m --redis " +
			"redis://127.0.0.1:6379\n" +
			"  lockstep publish https://example.com/acme/widgets.git --ref main --after " +
			"d670460b4b4aece5915caf5c68d12f560a9fe3e4 --pin --redis redis://127.0.0.1:6379\n" +
			"  lockstep publish https://example.com/acme/widgets.git --removed --redis redis://127.0.0.1:6379\n" +
			"  lockstep publish https://example.com/acme/gadgets.git --repo acme/widgets --moved-to acme/gadgets " +
			"--redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			change, err := flags.change(args[0])
			if err != nil {
				return err
			}
			if timeout <= 0 {
				return term.UsageError(fmt.Errorf("--timeout %v: want more than 0s", timeout))
			}
			_, end := traced(cmd, std)
			defer func() { end(err) }()
			if out.Form == term.FormEvent && !wait {
				return term.UsageError(errors.New("-o event prints a result, and needs --wait"))
			}
			if wait {
				return publishAndWait(cmd, std, change, timeout, out)
			}
			var entry string
			err = onRepo(cmd, std, 10*time.Second, change.Repo, func(ctx context.Context, d deployment) error {
				entry, err = changes.Publish(ctx, d.redis, d.cfg.Namespace(), change)
				return err
			})
			if err != nil {
				return err
			}
			return out.Show(std, publishedChange{change.ID, change.Repo.String(), entry}, func(w io.Writer) {
				fmt.Fprintf(w, "published change %s of %s\n", change.ID, change.Repo)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	flags.Add(cmd.Flags())
	cmd.Flags().StringVar(&flags.after, "after", "", "new `commit` of the ref")
	cmd.Flags().BoolVar(&flags.pin, "pin", false, "publish the commit of --after, even if the ref has moved on")
	cmd.Flags().StringVar(&flags.id, "id", "", "`id` of the change (default: a new UUID)")
	cmd.Flags().StringVar(&flags.onBusy, "on-busy", string(events.BusyWait),
		"behaviour while another job holds the repository: `wait or skip`")
	cmd.Flags().BoolVar(&flags.removed, "removed", false,
		"publish the removal of the repository or, with --ref, of that ref")
	cmd.Flags().StringVar(&flags.movedTo, "moved-to", "", "publish the move of --repo to this `owner/name` at the URL")
	cmd.Flags().BoolVar(&flags.due, "due", false, "poll the watched refs of the repository")
	cmd.MarkFlagsMutuallyExclusive("removed", "moved-to", "due")
	cmd.Flags().BoolVar(&flags.force, "force", false, "with --removed: remove the clone even if the remote still exists")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for the result and print it")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long --wait waits")
	out.Add(cmd, term.FormEvent)
	return cmd
}

// publishedChange is the output of publish without --wait.
type publishedChange struct {
	ID    string `json:"id"`
	Repo  string `json:"repo"`
	Entry string `json:"entry"`
}

// publishAndWait prints the result as sync does, except that a removal counts as success.
func publishAndWait(
	cmd *cobra.Command, std term.Streams, change events.Change, timeout time.Duration, out term.Output,
) error {
	return onRepo(cmd, std, timeout, change.Repo, func(ctx context.Context, d deployment) error {
		warnWithoutWorker(ctx, d.redis, d.cfg, std)
		result, err := enqueueAndAwait(ctx, std, out, d.redis, d.cfg, change, timeout)
		switch {
		case err != nil:
			return err
		case change.Type == events.ChangeRemoved && result.Type == events.ResultRemoved && out.IsTable():
			_, err := fmt.Fprintf(std.Stdout, "removed %s\n", strings.TrimSpace(result.Repo.String()+" "+result.Ref.String()))
			return err
		}
		return report(std.Stdout, d.cfg, result, out)
	})
}

// warnWithoutWorker says that a change will wait because no worker runs. Errors of Redis are left to what follows.
func warnWithoutWorker(ctx context.Context, client redis.UniversalClient, cfg config.Config, std term.Streams) {
	changes, err := stream.Stats(ctx, client, cfg.Prefix, cfg.Namespace().Changes())
	if workers, _ := changes.Group(events.WorkersGroup); err == nil && workers.Live == 0 {
		fmt.Fprintln(std.Stderr, "lockstep: warning: no worker takes changes, so this one waits; "+
			"start one with lockstep serve, with the same --redis and --prefix")
	}
}

// enqueueAndAwait publishes the change and waits for its result. The error says whether the change was published.
func enqueueAndAwait(
	ctx context.Context, std term.Streams, out term.Output, client redis.UniversalClient, cfg config.Config,
	change events.Change, timeout time.Duration,
) (events.Result, error) {
	defer showProgress(std, out, client, cfg, change)()
	entry, err := changes.Publish(ctx, client, cfg.Namespace(), change)
	switch {
	case err != nil && timedOut(ctx):
		return events.Result{}, &term.ExitError{Code: term.ExitTimedOut,
			Err: fmt.Errorf("change %s of %s: redis did not confirm it within %v, but may have stored it", change.ID,
				change.Repo, timeout)}
	case err != nil:
		return events.Result{}, err
	}
	result, err := await(ctx, client, cfg, entry)
	if err != nil && timedOut(ctx) {
		err = &term.ExitError{Code: term.ExitTimedOut, Err: fmt.Errorf("change %s of %s was published, "+
			"but has no result within %v; is a worker running? see lockstep status", change.ID, change.Repo, timeout)}
	}
	return result, err
}
