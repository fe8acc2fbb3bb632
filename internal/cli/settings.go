package cli

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/egress"
)

// settings loads a subcommand's settings. For subcommands that access remotes it also checks the hosts and files in them.
func settings(cmd *cobra.Command, std term.Streams) (config.Config, error) {
	cfg, err := loadSettings(cmd, std)
	if err == nil && cmd.Flags().Lookup("credentials") != nil {
		err = term.UsageError(checkNamed(cfg, std))
	}
	return cfg, err
}

// loadSettings loads a subcommand's settings.
func loadSettings(cmd *cobra.Command, std term.Streams) (config.Config, error) {
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		return config.Config{}, err
	}
	cfg, err := config.Load(cmd.Flags(), path, std.Environ)
	if err != nil {
		return config.Config{}, term.UsageError(err)
	}
	app.SilenceRedis()
	for _, warning := range cfg.Warnings {
		app.NewLogger(std.Stderr, cfg, slog.LevelWarn).WarnContext(cmd.Context(), "obsolete setting", "warning", warning)
	}
	return cfg, nil
}

// checkNamed checks the hosts, the proxy and the files in the settings. It opens no connections.
func checkNamed(cfg config.Config, std term.Streams) error {
	_, hosts := egress.ParseHosts("notify-hosts", cfg.NotifyHosts)
	return errors.Join(app.VolumeConfig(cfg).Net.Check(), hosts, credential.Check(cfg.Credentials, std.Variable))
}
