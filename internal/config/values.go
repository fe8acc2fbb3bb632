package config

import (
	"net/url"
	"reflect"
	"time"
)

// Value is the effective value of one setting.
type Value struct {
	Name  string
	Value any // string, int or []string; durations are formatted
}

// Values returns the effective values of all settings, in order, with passwords in URLs redacted.
func (c Config) Values() []Value {
	fields := map[string]any{}
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("koanf"); name != "" {
			fields[name] = v.Field(i).Interface()
		}
	}
	values := make([]Value, len(settings))
	for i, s := range settings {
		value := fields[s.name]
		switch set := value.(type) {
		case time.Duration:
			value = set.String()
		case string:
			value = redacted(set)
		}
		values[i] = Value{s.name, value}
	}
	return values
}

func redacted(text string) string {
	if !hasPassword(text) {
		return text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "(URL with a password, redacted)"
	}
	if query := u.Query(); query.Has("password") {
		query.Set("password", "xxxxx")
		u.RawQuery = query.Encode()
	}
	return u.Redacted()
}
