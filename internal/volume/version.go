package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
)

const (
	layoutName = "layout" // of the file that has the layout's version
	layout     = 1        // the version of what this program writes; grows when an older program could do harm
)

// checkLayout refuses a volume that a newer version has laid out, before anything on it changes. One that does
// not say is of the first layout, and says so from now on.
func (v *Volume) checkLayout() error {
	path := filepath.Join(v.root, adminDir, layoutName)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return disk.Error("write the volume's layout", disk.Replace(path, []byte(strconv.Itoa(layout)+"\n")))
	}
	if err != nil {
		return disk.Error("read the volume's layout", err)
	}
	switch n, err := strconv.Atoi(strings.TrimSpace(string(content))); {
	case err != nil || n < 1:
		return events.Errorf(events.Permanent, events.ClassVolume, "%s does not hold a number; restore the file, or delete it if no newer version was ever here", path)
	case n > layout:
		return events.Errorf(events.Permanent, events.ClassVolume,
			"%s has layout %d, and this version knows up to %d: run the version that was here before, or a newer one", v.root, n, layout)
	}
	return nil
}
