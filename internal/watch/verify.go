package watch

import (
	"errors"
	"fmt"

	"lockstep/events"
)

// Verify is a watch's requirement for signatures.
type Verify string

// The demands.
const (
	VerifyOff     Verify = ""        // nothing is verified
	VerifyReport  Verify = "report"  // results say who signed, or why it is not verified
	VerifyRequire Verify = "require" // only what is verified is published
)

// ParseVerify parses "off", "report", "require" or "", which is off.
func ParseVerify(text string) (Verify, error) {
	switch v := Verify(text); v {
	case "off":
		return VerifyOff, nil
	case VerifyOff, VerifyReport, VerifyRequire:
		return v, nil
	}
	return VerifyOff, errors.New("want off, report or require")
}

// String returns the text that [ParseVerify] parses.
func (v Verify) String() string { return string(v) }

// MarshalText implements [encoding.TextMarshaler].
func (v Verify) MarshalText() ([]byte, error) { return []byte(v), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (v *Verify) UnmarshalText(text []byte) (err error) {
	*v, err = ParseVerify(string(text))
	return err
}

// checkRules validates the watch's rules for commits.
func (w Watch) checkRules() error {
	switch {
	case w.VerifyKeys != "" && !appPattern.MatchString(w.VerifyKeys):
		return fmt.Errorf("verify_keys %.110q: want a credential's name: at most 100 letters, digits, dots, "+
			"underscores or hyphens", w.VerifyKeys)
	case w.Verify != VerifyOff && w.VerifyKeys == "":
		return errors.New("verify_keys: name the credential whose allowedSigners or openpgpKeys are trusted")
	case w.Verify == VerifyOff && w.VerifyKeys != "":
		return errors.New("verify: set report or require, or leave out verify_keys")
	case w.NoRewind && events.Depth(1).Covers(w.Depth):
		return errors.New("no_rewind: set depth to full, or to more commits than a push has: with one commit, " +
			"history cannot be compared")
	}
	return nil
}
