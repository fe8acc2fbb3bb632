package notify

import (
	"encoding/json"
	"errors"
	"time"

	"lockstep/events"
)

const (
	// itemVersion is incremented when older programs would misinterpret an item or could not decode it.
	itemVersion = 1

	// newerWait is how long an item of a newer version is left to processes of that version. It is short, because
	// the item blocks those queued after it.
	newerWait = 5 * time.Minute
)

var errNewer = errors.New("written by a newer version of lockstep")

// recent reports whether an entry was added recently enough that a process of a newer version may still take it. It
// returns false if the ID has a time in the future, because a publisher chose it.
func (n *Notifier) recent(entry string) bool {
	return time.Since(events.EntryTime(entry)).Abs() <= n.cfg.newer
}

// isNewer reads the fields that items of all versions have.
func isNewer(text string) (entry string, newer bool) {
	var i struct {
		Version int    `json:"version"`
		Entry   string `json:"entry"`
	}
	return i.Entry, json.Unmarshal([]byte(text), &i) == nil && i.Version > itemVersion
}
