package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Source reads the pressure from the files of a Linux system.
type Source struct{ root fs.FS }

// System returns the source of this machine.
func System() Source { return Source{os.DirFS("/")} }

// From returns a source whose files are those of root, for tests.
func From(root fs.FS) Source { return Source{root} }

// mounted is where control groups of version 2 are mounted, without the leading slash. A system with both versions has them below it.
var mounted = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}

// Read returns the pressure of the process' control group, or of the machine where the group's cannot be read. It fails if neither memory
// nor stalls can be read.
func (s Source) Read() (Reading, error) {
	var r Reading
	known := false
	group := s.group()
	if share, ok := s.groupMemory(group); ok {
		r.Memory, known = share, true
	} else if share, ok := s.machineMemory(); ok {
		r.Memory, known = share, true
	}
	for resource, stall := range map[string]*float64{"memory": &r.MemoryStall, "cpu": &r.CPUStall} {
		for _, file := range []string{path.Join(group, resource+".pressure"), path.Join("proc/pressure", resource)} {
			if share, ok := s.stall(file); ok {
				*stall, known = share, true
				break
			}
		}
	}
	if !known {
		return Reading{}, errors.New("want memory.current and memory.max of a control group (version 2), /proc/meminfo, or /proc/pressure (Linux 4.20)")
	}
	return r, nil
}

// group returns the folder of the process' control group, or "" if it has none of version 2.
func (s Source) group() string {
	text, err := fs.ReadFile(s.root, "proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, mount := range mounted {
			folder := path.Join(mount, path.Join("/", name)) // a name above the namespace's root starts with /..
			if _, err := fs.Stat(s.root, path.Join(folder, "cgroup.controllers")); err == nil {
				return folder
			}
		}
	}
	return ""
}

// groupMemory returns the share in use of the limit that is closest to being reached, of a group and its parents.
func (s Source) groupMemory(group string) (share float64, ok bool) {
	for ; strings.HasPrefix(group, "sys/fs/cgroup"); group = path.Dir(group) {
		limit := math.Inf(1)
		for _, name := range []string{"memory.max", "memory.high"} {
			if n, err := s.number(path.Join(group, name)); err == nil {
				limit = min(limit, n)
			}
		}
		current, err := s.number(path.Join(group, "memory.current"))
		if err != nil || limit <= 0 || math.IsInf(limit, 1) {
			continue
		}
		for _, reclaimable := range []string{"active_file", "inactive_file", "slab_reclaimable"} {
			current -= s.field(path.Join(group, "memory.stat"), reclaimable)
		}
		share, ok = max(share, current/limit, 0), true
	}
	return share, ok
}

func (s Source) machineMemory() (share float64, ok bool) {
	total, available := s.field("proc/meminfo", "MemTotal:"), s.field("proc/meminfo", "MemAvailable:")
	if total <= 0 || available <= 0 {
		return 0, false
	}
	return 1 - available/total, true
}

// stall returns avg10 of the line "some avg10=12.34 …" of a file of pressure stall information.
func (s Source) stall(file string) (share float64, ok bool) {
	text, err := fs.ReadFile(s.root, file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		rest, some := strings.CutPrefix(line, "some avg10=")
		if !some {
			continue
		}
		value, _, _ := strings.Cut(rest, " ")
		percent, err := strconv.ParseFloat(value, 64)
		return percent / 100, err == nil
	}
	return 0, false
}

// number returns the number in a file. "max" is an error.
func (s Source) number(file string) (float64, error) {
	text, err := fs.ReadFile(s.root, file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseFloat(string(bytes.TrimSpace(text)), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// field returns a number of a file with lines "name number", or 0 if it is not there.
func (s Source) field(file, name string) float64 {
	text, err := fs.ReadFile(s.root, file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == name {
			n, _ := strconv.ParseFloat(words[1], 64)
			return n
		}
	}
	return 0
}
