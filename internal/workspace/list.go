package workspace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/internal/volume"
)

// State is the state of a workspace.
type State string

// The states.
const (
	StateRunning    State = "running"    // Exec's, in use
	StateKilled     State = "killed"     // a leftover of an Exec or Create that was killed
	StateReady      State = "ready"      // Create's
	StateUnmounted  State = "unmounted"  // an overlay that is not mounted, as after a reboot; its written files remain
	StateIncomplete State = "incomplete" // Create has not finished
	StateGone       State = "gone"       // its folder was removed, but its tree is still pinned
	StateElsewhere  State = "elsewhere"  // on another machine
	StateDamaged    State = "damaged"    // its record cannot be read
)

// Listed is a workspace and its state.
type Listed struct {
	volume.Workspace
	State   State
	Written int64  // bytes on disk in the upper layer of an overlay
	Err     string // why a record cannot be read
}

// IsStale reports whether the workspace is no longer usable.
func (l Listed) IsStale() bool { return l.State == StateKilled || l.State == StateGone }

// List lists the workspaces that were created from trees of a volume and, if scratch is not empty, those of this user's [Exec]s
// there. Newest last.
func List(v *volume.Volume, scratch string) (list []Listed, err error) {
	for w, err := range v.Workspaces() {
		switch {
		case err != nil && w.Record == "":
			return nil, err
		case err != nil:
			list = append(list, Listed{Workspace: w, State: StateDamaged, Err: err.Error()})
		case checkRecord(w) != nil:
			list = append(list, Listed{Workspace: w, State: StateDamaged, Err: checkRecord(w).Error()})
		default:
			list = append(list, describe(w))
		}
	}
	if scratch != "" {
		dirs, err := scratches(scratch)
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			list = append(list, describeScratch(dir))
		}
	}
	slices.SortStableFunc(list, func(a, b Listed) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return list, nil
}

// checkRecord refuses a record whose layers are at a place that Create does not choose. Others may have write access to the volume,
// and Remove deletes what the record names.
func checkRecord(w volume.Workspace) error {
	if w.Layers != "" && w.Layers != layersOf(w.Dir, w.ID) {
		return fmt.Errorf("%s is damaged: delete it if its workspace at %s is no longer used", w.Record, w.Dir)
	}
	return nil
}

func describe(w volume.Workspace) Listed {
	l := Listed{Workspace: w, State: stateOf(w)}
	if l.State != StateElsewhere && w.Layers != "" {
		l.Written = bytesBelow(layers{w.Layers}.upper())
	}
	return l
}

func describeScratch(dir string) Listed {
	l := Listed{State: StateRunning}
	content, err := os.ReadFile(filepath.Join(dir, describedIn))
	if err == nil {
		err = json.Unmarshal(content, &l.Workspace)
	}
	if err != nil { // Exec has just begun, or was killed then
		l.Workspace = volume.Workspace{ID: strings.TrimPrefix(filepath.Base(dir), scratchPrefix), Dir: dir}
	}
	l.Layers, l.Kind = dir, string(KindOverlay)
	if _, err := os.Lstat(layers{dir}.upper()); err != nil {
		l.Kind = string(KindCopy)
	}
	if unlock, free := claim(dir); free {
		unlock()
		l.State = StateKilled
	}
	l.Written = bytesBelow(layers{dir}.upper())
	return l
}

// stateOf returns the state of a workspace made by Create.
func stateOf(w volume.Workspace) State {
	if host, _ := os.Hostname(); host != w.Host {
		return StateElsewhere
	}
	if w.Kind == "" {
		return stateOfIncomplete(w)
	}
	if Kind(w.Kind) == KindOverlay {
		if isMounted(w) {
			return StateReady
		}
		if _, err := os.Lstat(w.Layers); errors.Is(err, fs.ErrNotExist) {
			return StateGone
		}
		if _, err := os.Lstat(layers{w.Layers}.complete()); err != nil {
			return stateOfIncomplete(w)
		}
		return StateUnmounted
	}
	if ok, err := hasID(w.Dir, w.ID); err == nil && !ok {
		return StateGone
	}
	return StateReady
}

// stateOfIncomplete distinguishes a running Create, which has locked the folder, from one that was killed.
func stateOfIncomplete(w volume.Workspace) State {
	if unlock, free := claim(w.Dir); free {
		unlock()
		return StateKilled
	}
	return StateIncomplete
}

// sourceOf returns what the mount of a workspace shows as its device.
func sourceOf(w volume.Workspace) string { return "lockstep-" + w.ID }

// isMounted reports whether the overlay of a workspace is mounted, as this process sees it.
func isMounted(w volume.Workspace) bool { return slices.Contains(mountsOf(w, "self"), w.Dir) }

// mountsOf returns where the overlay of a workspace is mounted, as a process sees it.
func mountsOf(w volume.Workspace, process string) (at []string) {
	file, err := os.Open(filepath.Join("/proc", process, "mountinfo"))
	if err != nil {
		return nil
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		mount, device, _ := strings.Cut(lines.Text(), " - ")
		fields, of := strings.Fields(mount), strings.Fields(device)
		if len(fields) > 4 && len(of) > 1 && of[0] == "overlay" && of[1] == sourceOf(w) {
			at = append(at, unescape(fields[4]))
		}
	}
	return at
}

// checkMountedElsewhere fails if the overlay of a workspace is mounted in another mount namespace, such as that of a service or
// container. The kernel would let two mounts write to the same layers.
func checkMountedElsewhere(w volume.Workspace) error {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	seen := map[string]bool{own: true}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		space, err := os.Readlink(filepath.Join(process, "ns/mnt"))
		if err != nil || seen[space] {
			continue
		}
		seen[space] = true
		pid := filepath.Base(process)
		if at := mountsOf(w, pid); len(at) > 0 {
			return fmt.Errorf("the overlay is mounted at %s in the mount namespace of process %s: end that process, or use lockstep there (nsenter --target %s --mount)", at[0], pid, pid)
		}
	}
	return nil
}

// unescape decodes the octal escapes of /proc/self/mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// bytesBelow returns the space on disk that a folder uses, as far as it can be read.
func bytesBelow(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes
}
