//go:build !race

package proctest

// UnderRace reports whether the race detector is on.
const UnderRace = false
