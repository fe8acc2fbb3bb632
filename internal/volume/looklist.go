package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"lockstep/internal/disk"
)

// A lookList is the order in which syncs look at retired trees: oldest first, and a pinned one again after another grace. A sync reads
// its beginning only, however many trees are kept. The list decides nothing: the marks say whether a tree may be deleted. GC looks at
// all marks and writes the list anew, so a list that is lost or damaged only delays deletions until then.
//
// The file is a line with the offset of the first entry, and one line per entry: nanoseconds since 1970, and the name of a tree.

// lookEntry is an entry of the list.
type lookEntry struct {
	tree string
	at   time.Time // when it was retired, or last looked at
	next int64     // offset of the entry after it
}

const (
	lookHead  = int64(len("00000000000000000000\n"))
	lookBatch = 4096    // bytes read at once
	lookWaste = 1 << 20 // bytes of entries that are no longer needed before the file is written anew
)

// lookList returns the path of the list.
func (f folder) lookList() string { return filepath.Join(f.dir, "retired-order") }

// hasLookList reports whether there is a list, or no need of one.
func (f folder) hasLookList() (bool, error) {
	for _, path := range []string{f.lookList(), f.retired()} {
		_, err := os.Lstat(path)
		if err == nil {
			return path == f.lookList(), nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return false, disk.Error("look for retired trees", err)
		}
	}
	return true, nil
}

// firstLooks returns the first entries of the list, a few dozen at most, up to the first one that is not before a moment.
func (f folder) firstLooks(before time.Time) (entries []lookEntry, err error) {
	file, err := os.Open(f.lookList())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, disk.Error("read the order of retired trees", err)
	}
	defer file.Close()
	at, err := readLookHead(file)
	if err != nil {
		return nil, disk.Error("read the order of retired trees", err)
	}
	content := make([]byte, lookBatch)
	n, err := file.ReadAt(content, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, disk.Error("read the order of retired trees", err)
	}
	for content = content[:n]; ; {
		line, rest, ok := bytes.Cut(content, []byte("\n"))
		if !ok {
			return entries, nil
		}
		at += int64(len(line)) + 1
		content = rest
		nanoseconds, tree, _ := bytes.Cut(line, []byte(" "))
		since, err := strconv.ParseInt(string(nanoseconds), 10, 64)
		if err != nil || len(tree) == 0 || bytes.ContainsRune(tree, '/') {
			continue // half an entry
		}
		entry := lookEntry{string(tree), time.Unix(0, since), at}
		entries = append(entries, entry)
		if !entry.at.Before(before) {
			return entries, nil
		}
	}
}

// readLookHead returns the offset of the first entry.
func readLookHead(file *os.File) (int64, error) {
	head := make([]byte, lookHead)
	_, err := file.ReadAt(head, 0)
	if errors.Is(err, io.EOF) {
		return lookHead, nil // damaged, and without entries
	}
	if err != nil {
		return 0, err
	}
	at, err := strconv.ParseInt(string(head[:lookHead-1]), 10, 64)
	if err != nil || at < lookHead {
		return lookHead, nil // damaged: look at all
	}
	return at, nil
}

// lookLater appends trees to the list. The caller holds the file lock.
func (f folder) lookLater(trees ...string) error {
	if len(trees) == 0 {
		return nil
	}
	file, err := os.OpenFile(f.lookList(), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return disk.Error("retire a tree", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return disk.Error("retire a tree", err)
	}
	var added []byte
	at := info.Size()
	if at < lookHead {
		at, added = 0, formatLookHead(lookHead)
	} else if last := make([]byte, 1); at > lookHead {
		if _, err := file.ReadAt(last, at-1); err != nil {
			return disk.Error("retire a tree", err)
		}
		if last[0] != '\n' {
			added = []byte("\n") // ends half an entry
		}
	}
	_, err = file.WriteAt(append(added, formatLooks(time.Now(), trees)...), at)
	return disk.Error("retire a tree", err)
}

func formatLookHead(at int64) []byte { return fmt.Appendf(nil, "%0*d\n", lookHead-1, at) }

func formatLooks(at time.Time, trees []string) (lines []byte) {
	for _, tree := range trees {
		lines = fmt.Appendf(lines, "%d %s\n", at.UnixNano(), tree)
	}
	return lines
}

// looked drops the entries before an offset. The caller holds the file lock.
func (f folder) looked(next int64) error {
	file, err := os.OpenFile(f.lookList(), os.O_RDWR, 0)
	if err != nil {
		return disk.Error("note which retired trees were looked at", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return disk.Error("note which retired trees were looked at", err)
	}
	switch {
	case next >= info.Size(): // none is left
		if _, err = file.WriteAt(formatLookHead(lookHead), 0); err == nil {
			err = file.Truncate(lookHead)
		}
	case next > lookWaste && next > info.Size()/2:
		rest := make([]byte, info.Size()-next)
		if _, err = file.ReadAt(rest, next); err == nil {
			err = disk.ReplaceUnsynced(f.lookList(), append(formatLookHead(lookHead), rest...))
		}
	default:
		_, err = file.WriteAt(formatLookHead(next), 0)
	}
	return disk.Error("note which retired trees were looked at", err)
}

// writeLooks replaces the list by these trees, oldest first. The caller holds the file lock.
func (f folder) writeLooks(trees []retiredTree) error {
	content := formatLookHead(lookHead)
	for _, tree := range trees {
		content = append(content, formatLooks(time.Now().Add(-tree.age), []string{tree.name})...)
	}
	return disk.Error("write the order of retired trees", disk.ReplaceUnsynced(f.lookList(), content))
}
