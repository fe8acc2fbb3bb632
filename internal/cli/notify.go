package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/egress"
	"lockstep/internal/notify"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

func newNotifyCommand(std term.Streams) *cobra.Command {
	return newGroup("notify", "Show, send or test notifications", "", newNotifyListCommand(std),
		newNotifySendCommand(std), newNotifyTestCommand(std))
}

func newNotifyTestCommand(std term.Streams) *cobra.Command {
	var name, ref string
	var out term.Output
	cmd := withFlags(&cobra.Command{
		Use:   "test owner/name",
		Short: "Send a test notification to an app and print its answer",
		Long: "Send a notification of type " + notify.TestType + " to the URL of an app's watch,\n" +
			"signed with the watch's credential, and print what the app answers. It has no commit, and is sent\n" +
			"once, also if the watch's notifications are silenced. Run it with the settings of a notifier, for\n" +
			"the credential and the hosts that may be posted to. Exit code 1 if the answer is not 2xx.\n" +
			"\n" +
			"If --exec has a command for the app, that is run here instead, in the tree that is published now.",
		Example: "  lockstep notify test acme/widgets --app docs --credentials credentials --redis redis://127.0.0.1:6379\n" +
			"  lockstep notify test acme/widgets --app docs --ref 'refs/tags/v*' --redis redis://127.0.0.1:6379",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := watchKey(args[0], name, ref)
			if err != nil {
				return term.UsageError(err)
			}
			return onRepo(cmd, std, watchTimeout, key.Repo, func(ctx context.Context, d deployment) error {
				cfg := d.cfg
				commands, err := app.Commands(cfg, false)
				if err != nil {
					return err
				}
				_, runs := commands[key.App]
				w, err := findWatch(ctx, watch.NewRegistry(d.redis, cfg.Namespace()), key)
				if err != nil {
					return err
				}
				trust, err := egress.NewTrust(cfg.CAFile)
				if err != nil {
					return err
				}
				if runs {
					ctx = cmd.Context() // its own timeout counts
				}
				got, err := notify.Test(ctx, notify.Config{
					Secrets: credential.NewStore(cfg.Credentials, std.Variable), Hosts: cfg.NotifyHosts, Trust: trust,
					UserAgent: "lockstep/" + app.ReadBuild().Version, Commands: commands, Root: cfg.Root,
				}, w)
				if runs {
					answer := testRun{cfg.Commands()[key.App], got.Body, got.Took.Milliseconds()}
					return errors.Join(err, out.Show(std, answer, answer.Table))
				}
				if err != nil {
					return fmt.Errorf("%s: %w", term.Printable(cmp.Or(w.NotifyURL, key.App)), err)
				}
				answer := testAnswer{w.NotifyURL, got.Status, got.Body, got.Took.Milliseconds()}
				if err := out.Show(std, answer, answer.Table); err != nil {
					return err
				}
				if got.Status == http.StatusGone {
					return errors.New("the app answered 410: a notification would silence this watch until it is set again " +
						"with lockstep watch set; want 2xx")
				}
				if got.Status/100 != 2 {
					return fmt.Errorf("the app answered %d: notifications would be sent again; want 2xx", got.Status)
				}
				return nil
			})
		},
	}, config.Common|config.Posting, &out)
	cmd.Flags().StringVar(&name, "app", "", "`app` of the watch; required")
	cmd.Flags().StringVar(&ref, "ref", "",
		"watched `branch, ref, commit or pattern` (default: the remote's default branch)")
	return cmd
}

// testRun is a run of a command with a test notification.
type testRun struct {
	Command []string `json:"command"`
	Output  string   `json:"output,omitempty"` // its end
	TookMS  int64    `json:"took_ms"`
}

func (r testRun) Table(w io.Writer) {
	fmt.Fprintf(w, "ran\t%s, in %d ms\n", term.Printable(strings.Join(r.Command, " ")), r.TookMS)
	if text := strings.TrimSpace(r.Output); text != "" {
		fmt.Fprintf(w, "printed\t%s\n", term.Printable(text))
	}
}

// findWatch returns the watch with this key.
func findWatch(ctx context.Context, registry *watch.Registry, key watch.Key) (watch.Watch, error) {
	set, err := registry.Of(ctx, key.Repo)
	if err != nil {
		return watch.Watch{}, err
	}
	i := slices.IndexFunc(set.Watches, func(w watch.Watch) bool { return w.App == key.App && w.Ref == key.Ref })
	if i < 0 {
		return watch.Watch{}, notWatched(ctx, registry, key.Repo, key.App)
	}
	return set.Watches[i], nil
}
