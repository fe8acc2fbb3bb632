package volume

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// PinKind is the kind of a Pin.
type PinKind string

// The kinds of pins.
const (
	PinProcess PinKind = "process" // it reads a tree, or runs in a workspace
	PinAdopted PinKind = "adopted" // a clone that a published name replaced; only an operator deletes it
	PinFetched PinKind = "fetched" // somebody fetched into the .git of a tree that stays
)

// Pin is a reason why part of a purged commit stays.
type Pin struct {
	Kind  PinKind   `json:"kind"`
	Path  string    `json:"path"`           // what stays, relative to the root
	PID   int       `json:"pid,omitempty"`  // of the process; 0 if it has ended since, or is in another container or on another machine
	Name  string    `json:"name,omitempty"` // of the process
	Since time.Time `json:"since,omitzero"` // start of the process
}

// pin adds pins, without duplicates.
func (p *purge) pin(pins ...Pin) {
	for _, pin := range pins {
		same := func(other Pin) bool {
			return other.Kind == pin.Kind && other.Name == pin.Name && other.PID == pin.PID && (other.Path == pin.Path || pin.Name != "" || pin.PID != 0)
		}
		if !slices.ContainsFunc(p.result.Pins, same) {
			p.result.Pins = append(p.result.Pins, pin)
		}
	}
}

// pinsOf returns the pins of a tree.
func (p *purge) pinsOf(in folder, tree string) []Pin {
	return pinsAt(checkout.GitDirOf(in.tree(tree)).Pin(), p.v.relative(in.tree(tree)))
}

// pinsOfStore returns which processes may use any object of a store.
func (p *purge) pinsOfStore(s store) []Pin { return pinsAt(objectsPin(s.dir), p.v.relative(s.dir)) }

// pinsAt returns the processes that have locked a file, or an unknown one.
func pinsAt(file, path string) []Pin {
	if pins := processesAt(file, path); len(pins) > 0 {
		return pins
	}
	return []Pin{{Kind: PinProcess, Path: path}}
}

// adopted returns the adopted clones that have the commit.
func (p *purge) adopted() (pins []Pin, err error) {
	entries, err := disk.ReadDir(p.f.adopted())
	if err != nil {
		return nil, disk.Error("list the adopted clones", err)
	}
	for _, entry := range entries {
		dir := filepath.Join(p.f.adopted(), entry.Name())
		if has, err := hasAny(dir, p.commit); err != nil || has { // a damaged one may have it
			pins = append(pins, Pin{Kind: PinAdopted, Path: p.v.relative(dir)})
		}
	}
	return pins, nil
}

// hasAny reports whether a clone, bare or not, has one of the objects.
func hasAny(dir string, ids ...object.ID) (has bool, err error) {
	defer object.RecoverCorrupt(&err)
	objects := object.Open(filepath.Join(dir, ".git"), dir)
	defer objects.Close()
	for _, id := range ids {
		if has, err = objects.Has(id); has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// processesAt returns the processes of this machine that have locked a file. It asks repeatedly before it returns none: /proc/locks is
// read in parts, and may omit a lock while other processes release theirs.
func processesAt(file, path string) (pins []Pin) {
	for range 5 {
		if pins = listedAt(file, path); len(pins) > 0 {
			break
		}
	}
	return pins
}

// listedAt returns the processes that have locked a file, as /proc/locks lists them.
func listedAt(file, path string) (pins []Pin) {
	info, err := os.Stat(file)
	if err != nil {
		return nil
	}
	st, err := disk.Stat(info)
	if err != nil {
		return nil
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer locks.Close()
	inode := ":" + strconv.FormatUint(st.Ino, 10)
	known := map[int]bool{}
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // 1: FLOCK ADVISORY READ 4711 fe:01:1837 0 EOF
		if len(fields) < 6 || fields[1] != "FLOCK" || !strings.HasSuffix(fields[5], inode) {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		if err != nil || known[pid] || !hasOpen(pid, st) {
			continue
		}
		known[pid] = true
		name, since := process(pid)
		pins = append(pins, Pin{Kind: PinProcess, Path: path, PID: pid, Name: name, Since: since})
	}
	slices.SortFunc(pins, func(a, b Pin) int { return a.PID - b.PID })
	return pins
}

// hasOpen reports whether a process has a file open: on some file systems, /proc/locks names a device of another number. It returns
// true if that cannot be found out.
func hasOpen(pid int, file *syscall.Stat_t) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		return true
	}
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(dir, name.Name())); err == nil {
			if st, err := disk.Stat(info); err == nil && st.Ino == file.Ino && st.Dev == file.Dev {
				return true
			}
		}
	}
	return false
}

// clockTicks is the number of clock ticks in a second in /proc, on all Linux architectures that Go supports.
const clockTicks = 100

// process returns the name and the start of a process, as far as they can be read.
func process(pid int) (name string, since time.Time) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", time.Time{}
	}
	text := string(stat) // 4711 (name) S 1 …
	begin, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if begin < 0 || end < begin {
		return "", time.Time{}
	}
	name = text[begin+1 : end]
	fields := strings.Fields(text[end+1:])
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil || len(fields) < 20 {
		return name, time.Time{}
	}
	var up float64
	ticks, err := strconv.ParseFloat(fields[19], 64)
	if _, failed := fmt.Sscan(string(uptime), &up); failed != nil || err != nil {
		return name, time.Time{}
	}
	age := time.Duration((up - ticks/clockTicks) * float64(time.Second))
	return name, time.Now().Add(-age).Truncate(time.Second)
}
