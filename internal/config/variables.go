package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// SetFlags sets flags that are not given from variables with a prefix: PREFIX_ONE_TIME sets one-time. A variable that sets no
// flag is an error, unless its value is empty or false.
func SetFlags(flags *pflag.FlagSet, prefix string, environ []string) error {
	for _, pair := range environ {
		variable, value, _ := strings.Cut(pair, "=")
		name, ours := strings.CutPrefix(variable, prefix)
		flag := flags.Lookup(settingName(name))
		switch {
		case !ours || value == "" || serviceVariable.MatchString(pair) || flag != nil && flag.Changed:
		case flag == nil && value != "false":
			return fmt.Errorf("%s: unknown or not supported", variable)
		case flag != nil:
			if err := flags.Set(flag.Name, value); err != nil {
				return fmt.Errorf("%s: %w", variable, err)
			}
		}
	}
	return nil
}
