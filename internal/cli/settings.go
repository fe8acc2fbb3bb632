package cli

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/egress"
	"lockstep/internal/term"
)

// settings loads a subcommand's settings. For subcommands that access remotes it also checks the hosts and
// files in them.
func settings(cmd *cobra.Command, std term.Streams) (config.Config, error) {
	cfg, err := loadSettings(cmd, std)
	if err != nil {
		return cfg, err
	}
	return cfg, checkSettings(cmd, std, cfg)
}

// checkSettings warns of unknown variables, and checks what the settings name if the command uses it.
func checkSettings(cmd *cobra.Command, std term.Streams, cfg config.Config) error {
	warnOfUnknown(cmd, std, cfg)
	if cmd.Flags().Lookup("credentials") == nil {
		return nil
	}
	return term.UsageError(checkNamed(cfg, std))
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
	return cfg, nil
}

// warnOfUnknown logs the unknown LOCKSTEP_* variables.
func warnOfUnknown(cmd *cobra.Command, std term.Streams, cfg config.Config) {
	for _, variable := range cfg.Unknown {
		app.NewLogger(std.Stderr, cfg, slog.LevelWarn).WarnContext(cmd.Context(), "unknown variable, ignored",
			"variable", variable.Name, "similar", variable.Nearest)
	}
}

// checkNamed checks the hosts, the proxy and the files in the settings. It opens no connections.
func checkNamed(cfg config.Config, std term.Streams) error {
	_, hosts := egress.ParseHosts("notify-hosts", cfg.NotifyHosts)
	return errors.Join(config.Named(app.VolumeConfig(cfg).Net.Check()), config.Named(hosts),
		config.Named(credential.Check(cfg.Credentials, std.Variable)))
}
