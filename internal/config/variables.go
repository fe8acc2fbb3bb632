package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// checkVariables returns an error that names the first variable whose value does not parse.
func checkVariables(environ []string) error {
	for _, pair := range environ {
		variable, text, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(variable, EnvPrefix) {
			continue
		}
		name, value := setting(variable, text)
		if value == nil {
			continue
		}
		if s, _ := find(name); !s.parses(text) {
			return fmt.Errorf("%s %q: want %s", variable, text, s.want())
		}
	}
	return nil
}

func (s entry) parses(text string) bool {
	var err error
	switch s.value.(type) {
	case int:
		_, err = strconv.Atoi(text)
	case time.Duration:
		_, err = time.ParseDuration(text)
	}
	return err == nil
}

func (s entry) want() string {
	switch s.value.(type) {
	case int:
		return "a whole number"
	case time.Duration:
		return "a duration with its unit, such as 90s"
	case []string:
		return "a list of strings"
	}
	return "a string, quoted if necessary"
}

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
