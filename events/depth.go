package events

import (
	"errors"
	"fmt"
	"strconv"
)

// Depth is how many commits of a ref's history a clone is to have. The zero Depth asks for no more than
// the commit itself, as 1 does. Clones are not made shallower.
type Depth int

// DepthFull is all of a ref's history.
const DepthFull Depth = -1

// maxDepth is as deep as anybody counts.
const maxDepth = 1_000_000

var errBadDepth = errors.New(`want a number of commits from 1 to 1000000, or "full"`)

// ParseDepth reads a number of commits, or "full"; the empty text is the zero Depth.
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

// String is what ParseDepth reads.
func (d Depth) String() string {
	switch {
	case d == DepthFull:
		return "full"
	case d == 0:
		return ""
	}
	return strconv.Itoa(int(d))
}

// MarshalText is String.
func (d Depth) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is [ParseDepth].
func (d *Depth) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDepth(string(text))
	return err
}

// Covers reports whether a clone of depth d is as deep as other asks.
func (d Depth) Covers(other Depth) bool {
	return d == DepthFull || other != DepthFull && max(d, 1) >= other
}

func (d Depth) check() error {
	if d < DepthFull || d > maxDepth {
		return fmt.Errorf("depth: %w", errBadDepth)
	}
	return nil
}
