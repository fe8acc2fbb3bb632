package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/forge"
)

func newConfigCommand(std term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at the settings",
		Long:  "Look at the settings as flags, LOCKSTEP_* variables, lockstep.yaml and defaults make them, in that order of precedence.",
		Args:  term.WrongUse(term.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigPrintCommand(std), newConfigValidateCommand(std))
	return cmd
}

const allSettings = config.Common | config.Working | config.Serving

func newConfigPrintCommand(std term.Streams) *cobra.Command {
	out := term.Output{Form: term.FormYAML}
	cmd := &cobra.Command{
		Use:     "print",
		Short:   "Print the settings in force, without passwords",
		Long:    "Print the settings in force as a lockstep.yaml. Passwords are hidden; tokens and secrets are no settings, and not printed.",
		Example: "  lockstep config print\n  LOCKSTEP_LEASE=20s lockstep config print -o table",
		Args:    term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadSettings(cmd, std)
			if err != nil {
				return err
			}
			values := settingsInForce(cfg.Values())
			return out.Show(std, values, values.Table)
		},
	}
	config.AddFlags(cmd.Flags(), allSettings)
	out.Add(cmd)
	return cmd
}

// settingsInForce are one object, with the settings in the order of help.
type settingsInForce []config.Value

// MarshalJSON is that object.
func (s settingsInForce) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	for i, v := range s {
		value, err := json.Marshal(v.Value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "%c%q:%s", "{,"[min(i, 1)], v.Name, value)
	}
	text.WriteByte('}')
	return text.Bytes(), nil
}

func (s settingsInForce) Table(w io.Writer) {
	fmt.Fprintln(w, "SETTING\tVALUE")
	for _, v := range s {
		text := fmt.Sprint(v.Value)
		if list, ok := v.Value.([]string); ok {
			text = strings.Join(list, ",")
		}
		fmt.Fprintf(w, "%s\t%s\n", v.Name, term.Dash(text))
	}
}

// soundSettings is what validate has found.
type soundSettings struct {
	Sound   bool     `json:"sound"`
	Sources []string `json:"webhook_sources"`
}

func newConfigValidateCommand(std term.Streams) *cobra.Command {
	var out term.Output
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check the settings, and the sources of webhooks",
		Long: "Check what lockstep serve checks before it starts: the settings, the files and hosts that they name, and the\n" +
			"sources of webhooks. Nothing is connected to; for that, see lockstep doctor.",
		Example: "  lockstep config validate --config lockstep.yaml\n" +
			"  lockstep config validate --config lockstep.yaml -o json",
		Args: term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			sources, err := forge.LoadSources(cfg.Hooks, std.Environ)
			if err != nil {
				return term.UsageError(err)
			}
			names := append([]string{}, sources.Names()...)
			return out.Show(std, soundSettings{true, names}, func(w io.Writer) {
				fmt.Fprintf(w, "the settings are sound; %d sources of webhooks\n", len(names))
			})
		},
	}
	config.AddFlags(cmd.Flags(), allSettings)
	out.Add(cmd)
	return cmd
}
