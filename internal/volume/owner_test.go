package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/testenv"
)

// readsOf returns how often a folder is listed while fn runs.
func readsOf(t *testing.T, folder string, fn func()) (reads int) {
	t.Helper()
	fd := testenv.Must(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC))(t)
	defer unix.Close(fd)
	testenv.Must(unix.InotifyAddWatch(fd, folder, unix.IN_ACCESS|unix.IN_CLOSE|unix.IN_ONLYDIR))(t)
	fn()
	buf := make([]byte, 1<<20)
	reading := false
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			return reads
		}
		testenv.Must(0, err)(t)
		for event := buf[:n]; len(event) >= unix.SizeofInotifyEvent; {
			mask, name := binary.NativeEndian.Uint32(event[4:]), binary.NativeEndian.Uint32(event[12:])
			if name == 0 { // the folder itself
				access := mask&unix.IN_ACCESS != 0
				if access && !reading {
					reads++
				}
				reading = access
			}
			event = event[unix.SizeofInotifyEvent+int(name):]
		}
	}
}

// TestOwnersFolderIsRarelyRead counts how often a sync lists the owner's folder, which may have thousands of names.
func TestOwnersFolderIsRarelyRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	pushes := 0
	push := func() {
		pushes++
		w.push(map[string]string{"a": fmt.Sprint(pushes)})
		w.sync("")
	}
	owner := filepath.Dir(w.path(widgets))
	if n := readsOf(t, owner, func() { testenv.Must(os.ReadDir(owner))(t) }); n != 1 {
		t.Skipf("listing a folder counts as %d reads here", n)
	}
	if n := readsOf(t, owner, push); n != 0 {
		t.Errorf("a push lists the owner's folder %d times", n)
	}
	if n := readsOf(t, owner, func() { w.sync("") }); n != 0 {
		t.Errorf("a sync without changes lists it %d times", n)
	}
}
