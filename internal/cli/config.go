package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/forge"
	"lockstep/internal/term"
)

func newConfigCommand(std term.Streams) *cobra.Command {
	return newGroup("config", "Inspect the settings",
		"Inspect the settings in effect, which come from flags, LOCKSTEP_* variables, lockstep.yaml and\n"+
			"defaults, in that order of precedence.",
		newConfigPrintCommand(std), newConfigValidateCommand(std))
}

const allSettings = config.Common | config.Working | config.Serving

func newConfigPrintCommand(std term.Streams) *cobra.Command {
	out := term.Output{Form: term.FormYAML}
	return withFlags(&cobra.Command{
		Use:     "print",
		Short:   "Print the settings in effect, without passwords",
		Long:    "Print the settings in effect as a lockstep.yaml. It hides passwords and omits tokens and secrets.",
		Example: "  lockstep config print\n  LOCKSTEP_LEASE=20s lockstep config print -o table",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadSettings(cmd, std)
			if err != nil {
				return err
			}
			warnOfUnknown(cmd, std, cfg)
			values := settingsInForce(cfg.Values())
			return out.Show(std, values, values.Table)
		},
	}, allSettings, &out)
}

// settingsInForce prints as one object, in the order of the help text.
type settingsInForce []config.Value

// MarshalJSON implements [json.Marshaler].
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

// validation is the output of validate.
type validation struct {
	Valid   bool     `json:"sound"`
	Sources []string `json:"webhook_sources"`
}

func newConfigValidateCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "validate",
		Short: "Check the settings and the webhook sources",
		Long: "Run the checks that lockstep serve makes at the start: the settings, the files and hosts in them,\n" +
			"and the webhook sources. In addition, it refuses unknown LOCKSTEP_* variables. It opens no\n" +
			"connections; lockstep doctor does.",
		Example: "  lockstep config validate --config lockstep.yaml\n" +
			"  lockstep config validate --config lockstep.yaml -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadSettings(cmd, std)
			if err != nil {
				return err
			}
			if len(cfg.Unknown) > 0 {
				return term.UsageError(errors.New(cfg.Unknown[0].String()))
			}
			if err := checkNamed(cfg, std); err != nil {
				return term.UsageError(err)
			}
			sources, err := forge.LoadSources(cfg.Hooks, std.Environ)
			if err != nil {
				return term.UsageError(err)
			}
			if err := credential.Check(cfg.Credentials, std.Variable, sources.Credentials()...); err != nil {
				return term.UsageError(err)
			}
			names := append([]string{}, sources.Names()...)
			return out.Show(std, validation{true, names}, func(w io.Writer) {
				fmt.Fprintf(w, "the settings are valid; %d webhook sources\n", len(names))
			})
		},
	}, allSettings, &out)
}
