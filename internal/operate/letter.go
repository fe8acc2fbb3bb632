package operate

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
)

// Letter is a dead letter. For an unreadable entry it contains only the names and sizes of its fields, because their
// values may contain a password.
type Letter struct {
	ID       string    `json:"id"`
	Cell     string    `json:"cell,omitempty"` // if there are several
	At       time.Time `json:"at"`
	Reason   string    `json:"reason"`
	Class    string    `json:"class,omitempty"` // "" if unknown
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`

	Repo string `json:"repo,omitempty"` // "" if the entry could not be read
	Type string `json:"type,omitempty"`
	App  string `json:"app,omitempty"`
	Ref  string `json:"ref,omitempty"`
	Host string `json:"host,omitempty"` // of the change's remote
	Job  string `json:"job,omitempty"`  // ID of the change or result

	Stream   string `json:"stream"`
	Group    string `json:"group"`
	Consumer string `json:"consumer"`
	Entry    string `json:"entry"`

	Event     json.RawMessage `json:"event,omitempty"`     // the change or the result; only for a single letter
	Fields    map[string]int  `json:"fields,omitempty"`    // field sizes in bytes by name, if the entry could not be read
	Truncated string          `json:"truncated,omitempty"` // how much of the entry was kept, if truncated
}

// newLetter describes a letter. It includes the event only if full is set.
func newLetter(cell string, l stream.Letter, full bool) Letter {
	shown := Letter{
		ID: l.ID, Cell: cell, At: l.At, Reason: l.Reason, Class: l.Class, Error: l.Error, Attempts: l.Attempts, Truncated: l.Truncated,
		Stream: l.Stream, Group: l.Group, Consumer: l.Consumer, Entry: l.Entry,
	}
	event := shown.read(l)
	switch {
	case event == nil:
		shown.Fields = make(map[string]int, len(l.Original))
		for name, value := range l.Original {
			shown.Fields[name] = len(value)
		}
	case full:
		shown.Event, _ = json.Marshal(event) // cannot fail for a parsed event
	}
	return shown
}

// read sets what the change or the result in the entry says, and returns that, or nil if it cannot be read.
func (l *Letter) read(entry stream.Letter) json.Marshaler {
	msg, err := entry.Message()
	if err != nil {
		return nil
	}
	if c, err := events.ParseChange(msg.Payload); err == nil {
		c.ID = cmp.Or(c.ID, msg.UUID)
		l.Repo, l.Type, l.App, l.Ref, l.Job = c.Repo.String(), string(c.Type), c.App, c.Ref.String(), c.ID
		l.Host = events.CanonicalHost(c.URL)
		return c
	}
	if r, err := events.ParseResult(msg.Payload); err == nil {
		l.Repo, l.Type, l.App, l.Ref, l.Job = r.Repo.String(), string(r.Type), r.App, r.Ref.String(), r.ID
		l.App = cmp.Or(l.App, entry.Original["app"]) // of a notification
		return r
	}
	return nil
}

// LetterQuery selects letters, the newest first. The zero value selects all.
type LetterQuery struct {
	Repo   events.RepoPath // also in an unreadable entry
	App    string
	Reason string
	Class  string
	Host   string
	Whole  bool // only complete ones, which can be retried
	Oldest bool // the oldest first
	Limit  int
	After  string // continue after that page
}

// matches reports whether a letter, described by l, is of the app, class, host and repository and complete. Unreadable entries
// are of a repository if their field repo is its path, or any field contains the path in quotes.
func (q LetterQuery) matches(l Letter, entry stream.Letter) bool {
	switch {
	case q.App != "" && l.App != q.App, q.Class != "" && l.Class != q.Class,
		q.Host != "" && !strings.EqualFold(l.Host, q.Host), q.Whole && (entry.Truncated != "" || len(entry.Original) == 0):
		return false
	case q.Repo.IsZero() || l.Repo != "":
		return q.Repo.IsZero() || strings.EqualFold(l.Repo, q.Repo.Key())
	}
	key := q.Repo.Key()
	for name, value := range entry.Original {
		if name == "repo" && strings.EqualFold(value, key) || strings.Contains(strings.ToLower(value), strconv.Quote(key)) {
			return true
		}
	}
	return false
}
