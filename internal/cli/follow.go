package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/follow"
	"lockstep/internal/term"
)

// followFlags are the flags of lockstep follow that are not settings.
type followFlags struct {
	tokenFile, name string
	depth           string
	repos           []string
	tokenWait       time.Duration
	wipe, reader    bool
}

func newFollowCommand(std term.Streams) *cobra.Command {
	var flags followFlags
	cmd := &cobra.Command{
		Use:   "follow URL",
		Short: "Keep a copy of what a token reads from another deployment",
		Long: "Keep a local copy of the repositories that a token reads from the process with the role reader at a\n" +
			"URL, until SIGTERM. It lists them, syncs the differences, and follows the reader's results: each\n" +
			"push becomes the same immutable tree with the same commit, for lockstep exec, package tree and all\n" +
			"other readers. It needs neither Redis nor access to the forges. It catches up after any time without\n" +
			"a connection, and removes repositories that the token no longer reads.\n" +
			"\n" +
			"The token file is read at each request. If the reader refuses the token for longer than\n" +
			"--token-wait, the process stops with exit code 5. The copies stay, unless --wipe-on-revoke is given:\n" +
			"then they are deleted first, pinned trees once their last pin is released.",
		Example: "  lockstep follow https://lockstep.example.org --root /srv/repos --token-file /etc/lockstep/token\n" +
			"  lockstep follow https://lockstep.example.org --root /srv/repos --token-file token --repo 'acme/*' " +
			"--listen 127.0.0.1:8080",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			term.OutliveTerminal()
			roles := config.RoleWorker
			if flags.reader {
				roles += "," + config.RoleReader
			}
			if err := cmd.Flags().Set("roles", roles); err != nil {
				return err
			}
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			if flags.reader && cfg.Listen == "" {
				return term.UsageError(errors.New("--reader requires --listen"))
			}
			following, err := flags.config(args[0])
			if err != nil {
				return term.UsageError(err)
			}
			err = app.Follow(cmd.Context(), cfg, following, app.NewLogger(std.Stderr, cfg, slog.LevelInfo))
			if errors.Is(err, follow.ErrRevoked) {
				err = &term.ExitError{Code: term.ExitRevoked, Err: err}
			}
			return err
		},
	}
	config.AddFlags(cmd.Flags(), config.Following|config.Working)
	cmd.Flags().StringSlice("roles", nil, "")
	_ = cmd.Flags().MarkHidden("roles") // the flag exists
	cmd.Flags().StringVar(&flags.tokenFile, "token-file", "",
		"`file` with the token of an app, as printed by lockstep tokens create (required)")
	cmd.Flags().StringSliceVar(&flags.repos, "repo", nil, "`glob` of repositories to keep, such as acme/* or "+
		"acme/**; may be repeated (default all)")
	cmd.Flags().StringVar(&flags.depth, "depth", "1",
		"`commits` of history to keep, or full; not more than the reader keeps")
	cmd.Flags().StringVar(&flags.name, "name", "", "`name` in the reader's list of followers (default the host name)")
	cmd.Flags().DurationVar(&flags.tokenWait, "token-wait", 2*time.Minute, "`duration` for which a refused token may "+
		"be replaced in its file before it counts as removed")
	cmd.Flags().BoolVar(&flags.wipe, "wipe-on-revoke", false, "delete the copies once the token counts as removed")
	cmd.Flags().BoolVar(&flags.reader, "reader", false,
		"serve the copies to others over HTTP, to the API token; requires --listen")
	return cmd
}

var followerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// config returns the configuration for following the reader at a URL.
func (f followFlags) config(url string) (app.FollowConfig, error) {
	cfg := app.FollowConfig{
		Config: follow.Config{Select: f.repos, Name: f.name, TokenWait: f.tokenWait}, WipeOnRevoke: f.wipe,
	}
	if f.tokenFile == "" {
		return cfg, errors.New("--token-file is required; create a token with lockstep tokens create --app NAME")
	}
	if f.tokenWait <= 0 {
		return cfg, fmt.Errorf("--token-wait %v: want more than 0s", f.tokenWait)
	}
	for _, glob := range f.repos {
		if err := follow.CheckGlob(glob); err != nil {
			return cfg, err
		}
	}
	var err error
	if cfg.Depth, err = events.ParseDepth(f.depth); err != nil {
		return cfg, fmt.Errorf("--depth: %w", err)
	}
	if cfg.Name == "" {
		if cfg.Name, err = os.Hostname(); err != nil {
			return cfg, fmt.Errorf("--name is required: %w", err)
		}
	}
	if !followerName.MatchString(cfg.Name) {
		return cfg, fmt.Errorf("--name %q: want at most 100 letters, digits, dots, underscores or hyphens", cfg.Name)
	}
	cfg.Reader, err = follow.NewReader(url, f.tokenFile)
	return cfg, err
}
