package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/watch"
)

// watchWithin is how long reading or changing all watches may take.
const watchWithin = 5 * time.Minute

func newWatchCommand(std term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Say which apps watch which repositories",
		Long: "A watch is an app's standing interest in a repository: which refs of it are kept on the volume, with which\n" +
			"credential, how often the remote is asked without a webhook, and where results are posted. Whoever adds or\n" +
			"changes one has the repository looked at at once; with its last watch the clone is removed.",
		Args: term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newWatchAddCommand(std), newWatchRemoveCommand(std), newWatchListCommand(std), newWatchExportCommand(std), newWatchImportCommand(std))
	return cmd
}

// onWatches runs fn with the registry of the Redis that is named.
func onWatches(cmd *cobra.Command, std term.Streams, fn func(context.Context, *watch.Registry) error) error {
	return onRedis(cmd, std, watchWithin, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
		return fn(ctx, watch.NewRegistry(client, cfg.Namespace()))
	})
}

// watchFlags are the parts of a watch that a command line names.
type watchFlags struct {
	app, repo, ref, credential, depth, poll string
	notifyURL, notifySecret                 string
	paths                                   []string
}

func (f *watchFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.app, "app", "", "the `app` that watches; required")
	flags.StringVar(&f.repo, "repo", "", "`owner/name` to publish as (default: from the URL)")
	flags.StringVar(&f.ref, "ref", "", "`branch, ref or pattern` as refs/tags/v* (default: the remote's default branch)")
	flags.StringVar(&f.credential, "credential", "", "`name` of the credential to use")
	flags.StringVar(&f.depth, "depth", "", "`commits` of history to keep, or full (default: the commit alone)")
	flags.StringVar(&f.poll, "poll", "", "how often to ask the remote without a webhook: a `duration`, or never (default: the service's setting)")
	flags.StringVar(&f.notifyURL, "notify-url", "", "`URL` to post the app's results to")
	flags.StringVar(&f.notifySecret, "notify-secret", "", "`name` of the credential whose signing secret signs what is posted")
	flags.StringArrayVar(&f.paths, "path", nil, "post only results with a file that matches the `glob`, as docs/**; may be repeated")
}

// watch makes the watch; an error is a usage error.
func (f *watchFlags) watch(url string) (watch.Watch, error) {
	w := watch.Watch{
		App: f.app, URL: url, Credential: f.credential, NotifyURL: f.notifyURL, NotifySecret: f.notifySecret, Paths: f.paths,
	}
	if f.app == "" {
		return w, term.UsageError(errors.New("--app is required: name the app that watches"))
	}
	for _, part := range []struct {
		flag, text string
		into       interface{ UnmarshalText(text []byte) error }
	}{{"--repo", f.repo, &w.Repo}, {"--ref", f.ref, &w.Ref}, {"--depth", f.depth, &w.Depth}, {"--poll", f.poll, &w.Poll}} {
		if err := part.into.UnmarshalText([]byte(part.text)); err != nil {
			return w, term.UsageError(fmt.Errorf("%s: %w", part.flag, err))
		}
	}
	w, err := watch.New(w)
	if err != nil {
		return w, term.UsageError(err)
	}
	return w, nil
}

func newWatchAddCommand(std term.Streams) *cobra.Command {
	var flags watchFlags
	var out term.Output
	cmd := &cobra.Command{
		Use:   "add URL",
		Short: "Have an app watch a repository",
		Long: "Have an app watch a repository, or put another watch in the place of the one that it has of the same refs.\n" +
			"What is not given is as if it never was: a watch is put as a whole. To add a watch again whose notifications\n" +
			"were silenced takes them up again.",
		Example: "  lockstep watch add https://example.com/acme/widgets.git --app docs --redis redis://127.0.0.1:6379\n" +
			"  lockstep watch add git@example.com:acme/widgets.git --app ci --ref 'refs/tags/v*' --credential bot --poll 5m --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := flags.watch(args[0])
			if err != nil {
				return err
			}
			return onWatches(cmd, std, func(ctx context.Context, registry *watch.Registry) error {
				before, err := registry.Of(ctx, w.Repo)
				if err != nil {
					return err
				}
				changed, err := registry.Put(ctx, w)
				if err != nil {
					return err
				}
				outcome := watchPut{"added", w}
				switch {
				case changed == 0:
					outcome.Outcome = "unchanged"
				case slices.ContainsFunc(before.Watches, func(b watch.Watch) bool { return b.App == w.App && b.Ref == w.Ref }):
					outcome.Outcome = "changed"
				}
				return out.Show(std, outcome, outcome.Table)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	flags.Add(cmd.Flags())
	out.Add(cmd)
	return cmd
}

type watchPut struct {
	Outcome string      `json:"outcome"` // "added", "changed" or "unchanged"
	Watch   watch.Watch `json:"watch"`
}

func (p watchPut) Table(w io.Writer) { watchRow(w, p.Outcome, p.Watch) }

// watchRow says what became of a watch.
func watchRow(w io.Writer, outcome string, one watch.Watch) {
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", outcome, one.App, one.Repo, refText(one.Ref))
}

func refText(s watch.Selector) string {
	if s.IsDefault() {
		return "(default branch)"
	}
	return s.String()
}

func newWatchRemoveCommand(std term.Streams) *cobra.Command {
	var app, ref string
	var allRefs bool
	var out term.Output
	cmd := &cobra.Command{
		Use:   "rm owner/name",
		Short: "Have an app watch a repository no more",
		Long: "Remove an app's watch of a repository: of the remote's default branch, of --ref, or of all refs. With the\n" +
			"last watch of a repository, of whichever app, its clone is removed too.",
		Example: "  lockstep watch rm acme/widgets --app docs --redis redis://127.0.0.1:6379\n" +
			"  lockstep watch rm acme/widgets --app ci --ref 'refs/tags/v*' --redis redis://127.0.0.1:6379\n" +
			"  lockstep watch rm acme/widgets --app ci --all-refs --redis redis://127.0.0.1:6379",
		Args:              term.WrongUse(term.OneArg),
		ValidArgsFunction: completeFirst(std, watched),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, err := events.ParseRepoPath(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			selector, err := watch.ParseSelector(ref)
			switch {
			case err != nil:
				return term.UsageError(fmt.Errorf("--ref: %w", err))
			case app == "":
				return term.UsageError(errors.New("--app is required: name the app that is to watch no more"))
			case allRefs && cmd.Flags().Changed("ref"):
				return term.UsageError(errors.New("name refs either by --ref or by --all-refs"))
			}
			return onWatches(cmd, std, func(ctx context.Context, registry *watch.Registry) error {
				keys := []watch.Key{{App: app, Repo: repo, Ref: selector}}
				if allRefs {
					if keys, err = registry.Keys(ctx, repo, app); err != nil {
						return err
					}
				}
				removed, err := registry.Remove(ctx, keys...)
				if err != nil {
					return err
				}
				if removed == 0 {
					return notWatched(ctx, registry, repo, app)
				}
				outcome := watchesRemoved{removed}
				return out.Show(std, outcome, outcome.Table)
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().StringVar(&app, "app", "", "the `app` that is to watch no more; required")
	cmd.Flags().StringVar(&ref, "ref", "", "the `branch, ref or pattern` that it watches (default: the remote's default branch)")
	cmd.Flags().BoolVar(&allRefs, "all-refs", false, "all that the app watches of the repository")
	out.Add(cmd)
	return cmd
}

// notWatched says what the app does watch of the repository.
func notWatched(ctx context.Context, registry *watch.Registry, repo events.RepoPath, app string) error {
	keys, err := registry.Keys(ctx, repo, app)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return fmt.Errorf("%s does not watch %s; see lockstep watch ls", term.Printable(app), repo)
	}
	refs := make([]string, len(keys))
	for i, key := range keys {
		refs[i] = refText(key.Ref)
	}
	return fmt.Errorf("%s does not watch that of %s; it watches %s", term.Printable(app), repo, strings.Join(refs, ", "))
}

type watchesRemoved struct {
	Removed int `json:"removed"`
}

func (r watchesRemoved) Table(w io.Writer) { fmt.Fprintf(w, "removed\t%d\n", r.Removed) }
