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

// settings reads a subcommand's settings. Of one that works on repositories it also looks at what they name.
func settings(cmd *cobra.Command, std term.Streams) (config.Config, error) {
	cfg, err := loadSettings(cmd, std)
	if err == nil && cmd.Flags().Lookup("credentials") != nil {
		err = term.UsageError(checkNamed(cfg))
	}
	return cfg, err
}

// loadSettings reads a subcommand's settings.
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

// checkNamed looks at the hosts, the proxy and the files that the settings name, and connects to nothing.
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
		return fmt.Errorf("credentials: %s is no folder; want one with a folder for each credential", dir)
	}
	return nil
}
