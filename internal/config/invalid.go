package config

import (
	"fmt"
	"strings"
)

// Names returns the flag, the variable and the key of a setting, for messages: "--redis (LOCKSTEP_REDIS, or
// redis in lockstep.yaml)".
func Names(setting string) string {
	return fmt.Sprintf("--%s (%s, or %s in %s)", setting, VariableName(setting), setting, DefaultFile)
}

// VariableName returns the environment variable of a setting.
func VariableName(setting string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// Named adds the flag, the variable and the key to an error of one line that begins with the name of a setting.
func Named(err error) error {
	if err == nil {
		return nil
	}
	name, _, _ := strings.Cut(err.Error(), " ")
	name = strings.TrimSuffix(name, ":")
	if _, ok := find(name); !ok {
		return err
	}
	return fmt.Errorf("%w; set it with %s", err, Names(name))
}

// InvalidError reports settings that conflict with each other, or that name invalid files or hosts.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InvalidError) Unwrap() error { return e.Err }
