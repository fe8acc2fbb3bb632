package watch

import (
	"errors"
	"time"
)

// Interval is the time between polls of a remote. The zero Interval uses the setting poll-every.
type Interval time.Duration

// Never disables polling.
const Never Interval = -1

const (
	minInterval = Interval(time.Second)
	maxInterval = Interval(30 * 24 * time.Hour)
)

// ParseInterval parses a duration from 1s to 720h, "never" or "".
func ParseInterval(s string) (Interval, error) {
	switch s {
	case "":
		return 0, nil
	case "never":
		return Never, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || Interval(d) < minInterval || Interval(d) > maxInterval {
		return 0, errors.New(`want a duration from 1s to 720h, or "never"`)
	}
	return Interval(d), nil
}

// String returns the text that [ParseInterval] parses.
func (i Interval) String() string {
	switch i {
	case 0:
		return ""
	case Never:
		return "never"
	}
	return time.Duration(i).String()
}

// MarshalText implements [encoding.TextMarshaler].
func (i Interval) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (i *Interval) UnmarshalText(text []byte) (err error) {
	*i, err = ParseInterval(string(text))
	return err
}
