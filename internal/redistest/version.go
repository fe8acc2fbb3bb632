package redistest

import (
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
)

// major returns the major version of redis-server; 0 if it is unknown.
var major = sync.OnceValue(func() int {
	out, _ := exec.Command("redis-server", "--version").Output()
	found := regexp.MustCompile(`v=(\d+)\.`).FindSubmatch(out)
	if found == nil {
		return 0
	}
	version, _ := strconv.Atoi(string(found[1]))
	return version
})

// Lag returns lag, or -1 (unknown) with a Redis 6, which does not report the lag of a group that has read
// only part of its stream.
func Lag(lag int64) int64 {
	if major() == 6 {
		return -1
	}
	return lag
}

// argsFor removes settings that a Redis 6 does not know and does not need.
func argsFor(args []string) []string {
	if major() != 6 {
		return args
	}
	kept := slices.Clone(args)
	for _, name := range []string{"--enable-debug-command", "--cluster-port"} {
		if i := slices.Index(kept, name); i >= 0 {
			kept = slices.Delete(kept, i, i+2)
		}
	}
	return kept
}
