package app

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseMemory returns to the kernel what an idle process does not need: free heap, and the pages of the program's
// code, which it reads again from the file when they are used.
func ReleaseMemory() {
	debug.FreeOSMemory()
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var access string
		_, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &access)
		if err == nil && access == "r-xp" && strings.Contains(line, "/") { // of a file, and never written to
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED) // an error leaves them
		}
	}
}
