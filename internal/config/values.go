package config

import (
	"net/url"
	"time"
)

// Value is the effective value of one setting.
type Value struct {
	Name  string
	Value any // string, int or []string; durations are formatted
}

// Values returns the effective values of all settings, in order, with passwords in URLs redacted.
func (c Config) Values() []Value {
	fields := c.fields()
	values := make([]Value, len(settings))
	for i, s := range settings {
		values[i].Name = s.name
		switch field := fields[s.name].(type) {
		case *string:
			values[i].Value = redacted(*field)
		case *int:
			values[i].Value = *field
		case *time.Duration:
			values[i].Value = field.String()
		case *[]string:
			values[i].Value = *field
		}
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
