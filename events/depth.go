package events

import (
	"errors"
	"fmt"
	"strconv"
)

// Depth is the number of commits of a ref's history to keep; 0 means 1. A clone is never made shallower.
type Depth int

// DepthFull is the whole history of a ref.
const DepthFull Depth = -1

const maxDepth = 1_000_000

var errBadDepth = errors.New(`want a number of commits from 1 to 1000000, or "full"`)

// ParseDepth parses a number of commits or "full". The empty string is the zero Depth.
func ParseDepth(s string) (Depth, error) {
	switch s {
	case "":
		return 0, nil
	case "full":
		return DepthFull, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxDepth || s[0] == '+' {
		return 0, errBadDepth
	}
	return Depth(n), nil
}

// String formats the depth for ParseDepth.
func (d Depth) String() string {
	switch {
	case d == DepthFull:
		return "full"
	case d == 0:
		return ""
	}
	return strconv.Itoa(int(d))
}

// MarshalText returns [Depth.String].
func (d Depth) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses with [ParseDepth].
func (d *Depth) UnmarshalText(text []byte) (err error) {
	if *d, err = ParseDepth(string(text)); err != nil {
		return fmt.Errorf("depth: %w", err)
	}
	return nil
}

// Covers reports whether a clone of depth d contains at least the history of depth other.
func (d Depth) Covers(other Depth) bool {
	return d == DepthFull || other != DepthFull && max(d, 1) >= other
}

func (d Depth) check() error {
	if d < DepthFull || d > maxDepth {
		return fmt.Errorf("depth: %w", errBadDepth)
	}
	return nil
}

// Submodules says whether a tree has the files of its submodules. The apps of a ref share one tree, so the
// strictest value counts: of its watches, and of the change that is handled.
type Submodules string

// The values of Submodules.
const (
	SubmodulesOff Submodules = "" // they are empty folders
	// those that cannot be fetched are empty folders, and results list them.
	SubmodulesBestEffort Submodules = "best-effort"
	SubmodulesRequired   Submodules = "required" // a sync fails if one cannot be fetched
)

// ParseSubmodules parses off, best-effort, required, or nothing for off.
func ParseSubmodules(text string) (Submodules, error) {
	switch s := Submodules(text); s {
	case "off":
		return SubmodulesOff, nil
	case SubmodulesOff, SubmodulesBestEffort, SubmodulesRequired:
		return s, nil
	}
	return SubmodulesOff, fmt.Errorf("submodules %s: want off, best-effort or required", quote(text))
}

// UnmarshalText parses with [ParseSubmodules].
func (s *Submodules) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSubmodules(string(text))
	return err
}

// Or returns the stricter of two values.
func (s Submodules) Or(other Submodules) Submodules {
	if s == SubmodulesRequired || other == SubmodulesOff {
		return s
	}
	return other
}
