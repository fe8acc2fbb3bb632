package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// watchTimeout limits commands that read or change all watches.
const watchTimeout = 5 * time.Minute

func newWatchCommand(std term.Streams) *cobra.Command {
	return newGroup("watch", "Manage which apps watch which repositories",
		"A watch subscribes an app to a repository: which refs to keep on the volume, with which credential, how often to\n"+
			"poll the remote, and where to post results. A new or changed watch takes effect at once; removing the\n"+
			"last watch of a repository removes its clone.",
		newWatchAddCommand(std), newWatchSetCommand(std), newWatchRemoveCommand(std), newWatchListCommand(std),
		newWatchExportCommand(std), newWatchImportCommand(std))
}

// watchFlags are flags that describe a watch.
type watchFlags struct {
	app, repo, ref string

	url, credential, depth, poll string
	notifyURL, notifySecret      string
	maxRefs                      int
	followMoves                  bool
	paths                        []string
	extensions                   map[string]func(w *watch.Watch) error // as options returns them
}

func (f *watchFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.app, "app", "", "`app` that watches; required")
	flags.StringVar(&f.repo, "repo", "", "repository `owner/name` (default: from the URL)")
	flags.StringVar(&f.ref, "ref", "", "`branch, ref, commit or pattern`, such as refs/tags/v* (default: "+
		"the remote's default branch)")
	f.addOptions(flags)
}

// addOptions adds the flags that are not part of a watch's identity. A new one also needs an entry in options.
func (f *watchFlags) addOptions(flags *pflag.FlagSet) {
	flags.IntVar(&f.maxRefs, "max-refs", 0, "maximum `number` of refs that a pattern keeps (default: 100)")
	flags.StringVar(&f.credential, "credential", "", "`name` of the credential")
	flags.StringVar(&f.depth, "depth", "", "number of `commits` of history, or full (default: one commit)")
	flags.StringVar(&f.poll, "poll", "", "poll interval as a `duration`, or never (default: the service's setting)")
	flags.StringVar(&f.notifyURL, "notify-url", "", "`URL` for the app's results")
	flags.StringVar(&f.notifySecret, "notify-secret", "", "`name` of the credential with the signing secret for posts")
	flags.BoolVar(&f.followMoves, "follow-moves", false,
		"move the repository when its remote permanently redirects to another path")
	flags.StringArrayVar(&f.paths, "path", nil, "`glob` of files whose changes are posted, such as docs/**; repeatable")
	f.extensions = map[string]func(w *watch.Watch) error{}
	for _, flag := range watch.Flags() {
		value := flagValue(flags, flag)
		f.extensions[flag.Name] = func(w *watch.Watch) error { return flag.Set(w, value()) }
	}
}

// flagValue adds the flag of an extension, and returns a function that returns its value.
func flagValue(flags *pflag.FlagSet, flag watch.Flag) func() any {
	switch def := flag.Default.(type) {
	case bool:
		value := flags.Bool(flag.Name, def, flag.Usage)
		return func() any { return *value }
	case []string:
		value := flags.StringArray(flag.Name, def, flag.Usage)
		return func() any { return *value }
	default:
		value := flags.String(flag.Name, def.(string), flag.Usage)
		return func() any { return *value }
	}
}

// options returns what sets each option of a watch to the value of its flag, by the flag's name.
func (f *watchFlags) options() map[string]func(w *watch.Watch) error {
	options := map[string]func(w *watch.Watch) error{
		"url":           func(w *watch.Watch) error { w.URL = f.url; return nil },
		"max-refs":      func(w *watch.Watch) error { w.MaxRefs = f.maxRefs; return nil },
		"credential":    func(w *watch.Watch) error { w.Credential = f.credential; return nil },
		"depth":         func(w *watch.Watch) (err error) { w.Depth, err = events.ParseDepth(f.depth); return err },
		"poll":          func(w *watch.Watch) (err error) { w.Poll, err = watch.ParseInterval(f.poll); return err },
		"notify-url":    func(w *watch.Watch) error { w.NotifyURL, w.Silenced = f.notifyURL, ""; return nil },
		"notify-secret": func(w *watch.Watch) error { w.NotifySecret = f.notifySecret; return nil },
		"follow-moves":  func(w *watch.Watch) error { w.FollowMoves = f.followMoves; return nil },
		"path":          func(w *watch.Watch) error { w.Paths = f.paths; return nil },
	}
	maps.Copy(options, f.extensions)
	return options
}

// set sets options of a watch to the values of their flags.
func (f *watchFlags) set(w *watch.Watch, names ...string) error {
	options := f.options()
	for _, name := range names {
		if err := options[name](w); err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
	}
	return nil
}

// watch returns the watch, or a usage error.
func (f *watchFlags) watch(url string) (watch.Watch, error) {
	f.url = url
	w := watch.Watch{App: f.app}
	if f.app == "" {
		return w, term.UsageError(errors.New("--app is required"))
	}
	if err := w.Repo.UnmarshalText([]byte(f.repo)); err != nil {
		return w, term.UsageError(fmt.Errorf("--repo: %w", err))
	}
	var err error
	if w.Ref, err = watch.ParseSelector(f.ref); err != nil {
		return w, term.UsageError(fmt.Errorf("--ref: %w", err))
	}
	if err := f.set(&w, slices.Sorted(maps.Keys(f.options()))...); err != nil {
		return w, term.UsageError(err)
	}
	w, err = watch.New(w)
	return w, term.UsageError(err)
}

func newWatchAddCommand(std term.Streams) *cobra.Command {
	var flags watchFlags
	var out term.Output
	var unchecked bool
	cmd := &cobra.Command{
		Use:   "add URL",
		Short: "Add a watch",
		Long: "Add an app's watch of a repository. If the app watches the same refs of it already, with the same\n" +
			"options, there is nothing to do, except that its notifications are resumed if they were silenced.\n" +
			"With other options it is an error: change them with lockstep watch set.\n" +
			"\n" +
			"Afterwards it asks the remote for its branches, for at most 10 s, and warns if that fails. It does\n" +
			"not if the watch's credential is not configured on this machine.",
		Example: "  lockstep watch add https://example.com/acme/widgets.git --app docs --redis " +
			"redis://127.0.0.1:6379\n" +
			"  lockstep watch add git@example.com:acme/widgets.git --app ci --ref 'refs/tags/v*' --credential bot " +
			"--poll 5m --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := flags.watch(args[0])
			if err != nil {
				return err
			}
			return onRepo(cmd, std, watchTimeout, w.Repo, func(ctx context.Context, d deployment) error {
				existing, added, changed, err := watch.NewRegistry(d.redis, d.cfg.Namespace()).Create(ctx, w)
				if errors.Is(err, watch.ErrExists) {
					return alreadyWatched(existing, w)
				}
				if err != nil {
					return err
				}
				outcome := watchPut{"unchanged", w}
				switch {
				case added:
					outcome.Outcome = "added"
				case changed:
					outcome.Outcome = "resumed"
				}
				if err := out.Show(std, outcome, outcome.Table); err != nil || unchecked {
					return err
				}
				warnOfRemote(ctx, std, d.cfg, w)
				return nil
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	flags.Add(cmd.Flags())
	cmd.Flags().BoolVar(&unchecked, "no-check", false, "do not check the remote")
	out.Add(cmd)
	return cmd
}

type watchPut struct {
	Outcome string      `json:"outcome"` // "added", "unchanged" or "resumed"
	Watch   watch.Watch `json:"watch"`
}

func (p watchPut) Table(w io.Writer) { watchRow(w, p.Outcome, p.Watch) }

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
		Short: "Remove an app's watch of a repository",
		Long: "Remove an app's watch of the remote's default branch, of --ref or of all refs. Removing the last\n" +
			"watch of a repository, of any app, also removes its clone.",
		Example: "  lockstep watch rm acme/widgets --app docs --redis redis://127.0.0.1:6379\n" +
			"  lockstep watch rm acme/widgets --app ci --ref 'refs/tags/v*' --redis redis://127.0.0.1:6379\n" +
			"  lockstep watch rm acme/widgets --app ci --all-refs --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := watchKey(args[0], app, ref)
			switch {
			case err != nil:
				return term.UsageError(err)
			case allRefs && cmd.Flags().Changed("ref"):
				return term.UsageError(errors.New("use either --ref or --all-refs"))
			}
			return onRepo(cmd, std, watchTimeout, key.Repo, func(ctx context.Context, d deployment) error {
				registry := watch.NewRegistry(d.redis, d.cfg.Namespace())
				keys := []watch.Key{key}
				if allRefs {
					if keys, err = registry.Keys(ctx, key.Repo, app); err != nil {
						return err
					}
				}
				removed, err := registry.Remove(ctx, keys...)
				if err != nil {
					return err
				}
				if removed == 0 {
					return notWatched(ctx, registry, key.Repo, app)
				}
				return out.Show(std, map[string]int{"removed": removed}, func(w io.Writer) {
					fmt.Fprintf(w, "removed\t%d\n", removed)
				})
			})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common)
	cmd.Flags().StringVar(&app, "app", "", "`app` of the watch; required")
	cmd.Flags().StringVar(&ref, "ref", "",
		"watched `branch, ref, commit or pattern` (default: the remote's default branch)")
	cmd.Flags().BoolVar(&allRefs, "all-refs", false, "remove all watches of the app for the repository")
	out.Add(cmd)
	return cmd
}

// watchKey returns the key of the watch that an argument and the flags --app and --ref name.
func watchKey(repoPath, app, ref string) (watch.Key, error) {
	repo, err := events.ParseRepoPath(repoPath)
	if err != nil {
		return watch.Key{}, err
	}
	selector, err := watch.ParseSelector(ref)
	switch {
	case err != nil:
		return watch.Key{}, fmt.Errorf("--ref: %w", err)
	case app == "":
		return watch.Key{}, errors.New("--app is required")
	}
	return watch.Key{App: app, Repo: repo, Ref: selector}, nil
}

// notWatched returns an error that lists the app's watches.
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
	return fmt.Errorf("%s does not watch this ref of %s; it watches %s", term.Printable(app), repo,
		strings.Join(refs, ", "))
}
