package notify

import (
	"encoding/json"
	"errors"
	"time"

	"lockstep/events"
)

const (
	// itemVersion grows when an older program would send something else than an item says, or could not read it.
	itemVersion = 1

	// newerWait is for how long what a newer version has written is left to a process of that version. It is
	// short: meanwhile nothing that comes behind it is sent.
	newerWait = 5 * time.Minute
)

var errNewer = errors.New("it is for a newer version")

// recent reports whether an entry was added so lately that a process of a newer version may yet take it. One from the
// future, whose id somebody made up, was not: it would be waited for until then.
func (n *Notifier) recent(entry string) bool {
	return time.Since(events.EntryTime(entry)).Abs() <= n.cfg.newer
}

// isNewer reads what items of all versions have.
func isNewer(text string) (entry string, newer bool) {
	var i struct {
		Version int    `json:"version"`
		Entry   string `json:"entry"`
	}
	return i.Entry, json.Unmarshal([]byte(text), &i) == nil && i.Version > itemVersion
}
