package events

import "fmt"

// Submodules says whether a tree has the files of its submodules. The apps of a ref share one tree, so the
// strictest value counts: of its watches, and of the change that is handled.
type Submodules string

// The values of Submodules.
const (
	SubmodulesOff Submodules = "" // they are empty folders
	// those that cannot be fetched are empty folders, and results list them
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

// Or returns the stricter of two values.
func (s Submodules) Or(other Submodules) Submodules {
	if s == SubmodulesRequired || other == SubmodulesOff {
		return s
	}
	return other
}
