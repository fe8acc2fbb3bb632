package cli

import (
	"log/slog"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/term"
)

func newServeCommand(std term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service",
		Long: "Run one process of the service until SIGTERM or SIGINT; it ignores SIGHUP, SIGUSR1 and SIGUSR2. Any\n" +
			"number of processes can share one Redis and one volume. Without --redis it uses an embedded Redis,\n" +
			"for a single process; its data is lost when the process ends.",
		Example: "  lockstep serve --redis redis://127.0.0.1:6379 --root /srv/repos\n" +
			"  lockstep serve --roles receiver --listen 127.0.0.1:8080 --redis redis://127.0.0.1:6379",
		RunE: func(cmd *cobra.Command, _ []string) error {
			term.OutliveTerminal()
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			return app.Serve(cmd.Context(), app.Config{Config: cfg, Log: app.NewLogger(std.Stderr, cfg, slog.LevelInfo)})
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Working|config.Serving)
	return cmd
}
