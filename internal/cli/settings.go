package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/egress"
)

// settings loads a subcommand's settings. For subcommands that access remotes it also checks the hosts and files in them.
func settings(cmd *cobra.Command, std term.Streams) (config.Config, error) {
	cfg, err := loadSettings(cmd, std)
	if err == nil && cmd.Flags().Lookup("credentials") != nil {
		err = term.UsageError(checkNamed(cfg))
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
	return cfg, nil
}

// checkNamed checks the hosts, the proxy and the files in the settings. It opens no connections.
func checkNamed(cfg config.Config) error {
	_, hosts := egress.ParseHosts("notify-hosts", cfg.NotifyHosts)
	return errors.Join(app.VolumeConfig(cfg).Net.Check(), hosts, checkCredentials(cfg.Credentials))
}

func checkCredentials(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("credentials: %w", err)
	case !info.IsDir():
		return fmt.Errorf("credentials: %s is not a directory; want one with a directory for each credential", dir)
	}
	return nil
}
