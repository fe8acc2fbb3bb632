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
	layoutName = "layout" // file with the layout version
	layout     = 1        // incremented when an older program could corrupt the volume
)

// checkLayout refuses a volume with a newer layout before anything on it changes. A new volume gets the file.
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
		return events.Errorf(events.Permanent, events.ClassVolume, "%s does not contain a number; restore the file, "+
			"or delete it if no newer version has used this volume", path)
	case n > layout:
		return events.Errorf(events.Permanent, events.ClassVolume,
			"%s has layout %d, but this version supports layouts up to %d: run the previous version or a newer one",
			v.root, n, layout)
	}
	return nil
}
