package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Load reads and checks the settings. flags may be nil. If path is empty, Load reads [DefaultFile] if it
// exists. environ has the form of [os.Environ].
func Load(flags *pflag.FlagSet, path string, environ []string) (Config, error) {
	c := Config{Unknown: unknownVariables(environ)}
	fields := c.fields()
	for _, s := range settings {
		reflect.ValueOf(fields[s.name]).Elem().Set(reflect.ValueOf(s.value))
	}
	if err := loadFile(fields, path); err != nil {
		return Config{}, err
	}
	if err := loadVariables(fields, environ); err != nil {
		return Config{}, err
	}
	if flags != nil {
		if err := loadFlags(fields, flags); err != nil {
			return Config{}, err
		}
	}
	return c, c.check(environ)
}

// fields returns pointers to all settings, by name.
func (c *Config) fields() map[string]any {
	fields, v := map[string]any{}, reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("setting"); name != "" {
			fields[name] = v.Field(i).Addr().Interface()
		}
	}
	return fields
}

func loadFile(fields map[string]any, path string) error {
	named := path != ""
	path = cmp.Or(path, DefaultFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	var values map[string]any
	if err == nil {
		err = yaml.Unmarshal(text, &values)
	}
	if err != nil {
		return fmt.Errorf("config file %s: %w", path, err)
	}
	for name, value := range values {
		s, ok := find(name)
		if !ok {
			return fmt.Errorf("config file %s: unknown setting %q; see lockstep serve --help", path, name)
		}
		if value == nil { // "root:" without a value
			continue
		}
		if err := s.set(fields[name], value); err != nil {
			return fmt.Errorf("config file %s: %s: %w", path, name, err)
		}
	}
	return nil
}

// loadVariables ignores empty and unknown variables. Those are not an error, unlike an unknown key in a file: see
// Config.Unknown.
func loadVariables(fields map[string]any, environ []string) error {
	for _, pair := range environ {
		variable, text, _ := strings.Cut(pair, "=")
		suffix, isOurs := strings.CutPrefix(variable, EnvPrefix)
		s, ok := find(settingName(suffix))
		if !isOurs || !ok || text == "" {
			continue
		}
		if err := s.set(fields[s.name], text); err != nil {
			return fmt.Errorf("%s %q: %w", variable, text, err)
		}
	}
	return nil
}

func loadFlags(fields map[string]any, flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) { // those that are given
		s, ok := find(f.Name)
		if !ok || err != nil {
			return
		}
		instead := map[string]string{
			"redis": "--redis-password-file or LOCKSTEP_REDIS", "proxy": "LOCKSTEP_PROXY or the file",
		}[f.Name]
		switch list, isList := f.Value.(pflag.SliceValue); {
		case instead != "" && hasPassword(f.Value.String()):
			err = fmt.Errorf("--%s: every user of this machine can see a password in an argument; use %s", f.Name, instead)
		case isList:
			err = s.set(fields[s.name], list.GetSlice())
		default:
			err = s.set(fields[s.name], f.Value.String())
		}
	})
	return err
}

// set sets the field of a setting to a value of a YAML document or of a flag, or to a text that stands for one. Other
// conversions would be wrong: 300 would mean 300 ns, true one slot, and a list its first element.
func (s entry) set(field, value any) error {
	text, fits := value.(string)
	switch field := field.(type) {
	case *string:
		*field = text
	case *int:
		n, err := strconv.Atoi(text)
		if number, ok := value.(int); ok {
			n, err = number, nil
		}
		*field, fits = n, err == nil
	case *time.Duration:
		d, err := time.ParseDuration(text)
		*field, fits = d, err == nil
	case *[]string:
		*field, fits = listOf(value)
	}
	if !fits {
		return fmt.Errorf("want %s", s.want())
	}
	return nil
}

// listOf returns the items of a list, or of a text, in which commas separate them. An item may be a whole number.
func listOf(value any) (items []string, ok bool) {
	switch value := value.(type) {
	case []string:
		return value, true
	case []any:
		items = []string{}
		for _, item := range value {
			some, ok := listOf(item)
			if _, isList := item.([]any); isList || !ok {
				return nil, false
			}
			items = append(items, some...)
		}
		return items, true
	case string, int:
		return strings.Split(fmt.Sprint(value), ","), true
	}
	return nil, false
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
