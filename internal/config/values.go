package config

import (
	"net/url"
	"reflect"
	"time"
)

// Value is one setting as it is in force.
type Value struct {
	Name  string
	Value any // a text, a number, true or false, or a list of texts; a duration is its text
}

// Values are all settings in force, in the order in which help and README show them. A password in a URL
// is hidden.
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

// redacted hides the password in a text that is a URL with one.
func redacted(text string) string {
	if !hasPassword(text) {
		return text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "(a URL with a password, not repeated)"
	}
	return u.Redacted()
}
