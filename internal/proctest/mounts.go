package proctest

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// UnmountBelow unmounts everything mounted below a folder.
func UnmountBelow(dir string) {
	content, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			_ = unix.Unmount(fields[4], unix.MNT_DETACH)
		}
	}
}
