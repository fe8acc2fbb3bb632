package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"lockstep/internal/config"
	"lockstep/internal/forge"
)

func newConfigCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at the settings",
		Long:  "Look at the settings as flags, LOCKSTEP_* variables, lockstep.yaml and defaults make them, in that order of precedence.",
		Args:  wrongUse(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigPrintCommand(std), newConfigValidateCommand(std))
	return cmd
}

const allSettings = config.Common | config.Working | config.Serving

func newConfigPrintCommand(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "print",
		Short:   "Print the settings in force, without passwords",
		Long:    "Print the settings in force as a lockstep.yaml. Passwords are hidden; tokens and secrets are no settings, and not printed.",
		Example: "  lockstep config print\n  LOCKSTEP_LEASE=20s lockstep config print --json",
		Args:    wrongUse(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			if asJSON {
				values := map[string]any{}
				for _, v := range cfg.Values() {
					values[v.Name] = v.Value
				}
				return json.NewEncoder(std.stdout).Encode(values)
			}
			for _, v := range cfg.Values() {
				line, err := yaml.Marshal(map[string]any{v.Name: v.Value})
				if err != nil {
					return err
				}
				if _, err := std.stdout.Write(line); err != nil {
					return err
				}
			}
			return nil
		},
	}
	config.AddFlags(cmd.Flags(), allSettings)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newConfigValidateCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check the settings, and the sources of webhooks",
		Long: "Check what lockstep serve checks before it starts: the settings, the files that they name, and the sources of\n" +
			"webhooks. Nothing is connected to; for that, see lockstep doctor.",
		Example: "  lockstep config validate --config lockstep.yaml",
		Args:    wrongUse(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			sources, err := forge.LoadSources(cfg.Hooks, std.environ)
			if err != nil {
				return usageError(err)
			}
			if cfg.Credentials != "" {
				if info, err := os.Stat(cfg.Credentials); err != nil {
					return usageError(fmt.Errorf("credentials: %w", err))
				} else if !info.IsDir() {
					return usageError(errors.New("credentials: want a folder with one folder for each credential"))
				}
			}
			_, err = fmt.Fprintf(std.stdout, "the settings are sound; %d sources of webhooks\n", len(sources.Names()))
			return err
		},
	}
	config.AddFlags(cmd.Flags(), allSettings)
	return cmd
}
