// Package signatures verifies the signatures of commits and tags, and refuses rewritten history, for the watches that
// ask for it.
package signatures

import (
	"errors"
	"fmt"

	"lockstep/events"
	"lockstep/internal/watch"
)

// Name is the name of the extension.
const Name = "signatures"

// Options are the rules of a watch for commits and tags.
type Options struct {
	Verify   Verify `json:"verify,omitempty" yaml:"verify,omitempty"`
	Keys     string `json:"verify_keys,omitempty" yaml:"verify_keys,omitempty"` // credential with the trusted keys
	NoRewind bool   `json:"no_rewind,omitempty" yaml:"no_rewind,omitempty"`     // refuse rewritten history
}

// Verify is a watch's requirement for signatures.
type Verify string

// The requirements.
const (
	VerifyOff     Verify = ""        // nothing is verified
	VerifyReport  Verify = "report"  // results say who signed, or why it is not verified
	VerifyRequire Verify = "require" // only what is verified is published
)

func init() {
	watch.Register(watch.Extension{Option: Options{}, Flags: []watch.Flag{
		{Name: "verify", Field: "verify", Default: "", Usage: "signatures: `off, report or require` (default: off)",
			Parse: func(value any) (any, error) { return parseVerify(Verify(value.(string))) }},
		{Name: "verify-keys", Field: "verify_keys", Default: "", Usage: "`name` of the credential with the trusted keys"},
		{Name: "no-rewind", Field: "no_rewind", Default: false, Usage: "refuse rewritten history; requires --depth"},
	}})
}

// Of returns the rules of a watch.
func Of(w watch.Watch) Options { return watch.OptionOf[Options](w) }

// Extension implements [watch.Option].
func (Options) Extension() string { return Name }

// Check implements [watch.Option].
func (o Options) Check(w watch.Watch) (_ watch.Option, err error) {
	if o.Verify, err = parseVerify(o.Verify); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	if o.Keys != "" {
		if err := watch.CheckCredential("verify_keys", o.Keys); err != nil {
			return nil, err
		}
	}
	switch {
	case o.Verify != VerifyOff && o.Keys == "":
		return nil, errors.New("verify_keys: name the credential whose allowedSigners or openpgpKeys are trusted")
	case o.Verify == VerifyOff && o.Keys != "":
		return nil, errors.New("verify: set report or require, or leave out verify_keys")
	case o.NoRewind && events.Depth(1).Covers(w.Depth):
		return nil, errors.New("no_rewind: set depth to full, or to more commits than a push has: with one commit, " +
			"history cannot be compared")
	case o == Options{}:
		return nil, nil
	}
	return o, nil
}

// parseVerify accepts "off" for VerifyOff.
func parseVerify(v Verify) (Verify, error) {
	switch v {
	case "off":
		return VerifyOff, nil
	case VerifyOff, VerifyReport, VerifyRequire:
		return v, nil
	}
	return VerifyOff, errors.New("want off, report or require")
}
