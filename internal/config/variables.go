package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
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
