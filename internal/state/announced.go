package state

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep/events"
)

// Awaited are announced commits that the remote does not show yet.
type Awaited struct {
	Looks   int            `json:"looks,omitempty"` // at the remote, since the last announcement
	Next    time.Time      `json:"next"`            // next look, for all of them
	Commits []Announcement `json:"commits"`         // at most [MaxAwaited]
}

// Announcement is a change that waits until the remote shows the commit that it announces.
type Announcement struct {
	Entry  string    `json:"entry"`
	App    string    `json:"app"`
	Ref    string    `json:"ref"` // empty for the default branch
	Commit string    `json:"commit"`
	Since  time.Time `json:"since"`
	Turn   bool      `json:"turn,omitempty"` // the last look has returned it to the stream, to be synced itself
}

// Change returns the change as far as it is known.
func (a Announcement) Change() events.Change {
	ref, _ := events.ParseRef(a.Ref)
	return events.Change{Type: events.ChangePushed, App: a.App, Ref: ref, After: a.Commit}
}

const (
	// AwaitedFor is how long a change waits for its commit.
	AwaitedFor = 10 * time.Minute
	// MaxAwaited is the number of announcements that are stored; more of them wait, too.
	MaxAwaited = 256
	// MaxChain is the number of commits that [Repo.Chain] returns at most.
	MaxChain = 16

	awaitedField = "awaited"
	chainPrefix  = "chain:"
)

// Awaited returns the commits that are awaited.
func (r Repo) Awaited() (awaited Awaited) {
	_ = json.Unmarshal([]byte(r.fields[awaitedField]), &awaited)
	return awaited
}

// Has reports whether the change in an entry waits.
func (a Awaited) Has(entry string) bool {
	return slices.ContainsFunc(a.Commits, func(one Announcement) bool { return one.Entry == entry })
}

// HasTurn reports whether the change in an entry waits for no look.
func (a Awaited) HasTurn(entry string) bool {
	return slices.ContainsFunc(a.Commits, func(one Announcement) bool { return one.Entry == entry && one.Turn })
}

// Add adds the change in an entry, perhaps with a turn of its own, unless there are too many.
func (a *Awaited) Add(c events.Change, entry string, turn bool) {
	if len(a.Commits) < MaxAwaited {
		a.Commits = append(a.Commits, Announcement{
			Entry: entry, App: c.App, Ref: c.Ref.String(), Commit: c.After, Since: events.EntryTime(entry),
			Turn: turn,
		})
	}
}

// Without returns what is awaited at a time of Redis' clock, without the announcements that match.
func (a Awaited) Without(match func(Announcement) bool, now time.Time) Awaited {
	a.Commits = slices.DeleteFunc(slices.Clone(a.Commits), func(one Announcement) bool {
		return now.Sub(one.Since) > AwaitedFor+time.Minute || match(one)
	})
	return a
}

// AwaitedFields removes from a loaded state the announcements that match, once they are settled, and returns the fields
// to set and to drop.
func (r Repo) AwaitedFields(now time.Time, settled func(Announcement) bool) (set map[string]string, drop []string) {
	before := r.Awaited()
	left := before.Without(settled, now)
	switch {
	case r.fields[awaitedField] == "":
		return nil, nil
	case len(left.Commits) == 0:
		delete(r.fields, awaitedField)
		return nil, []string{awaitedField}
	case len(left.Commits) == len(before.Commits):
		return nil, nil
	}
	r.fields[awaitedField] = left.text()
	return map[string]string{awaitedField: left.text()}, nil
}

func (a Awaited) text() string {
	text, _ := json.Marshal(a) // cannot fail
	return string(text)
}

// SetAwaited stores what is awaited, under the lease with the given fence. If a newer lease has been granted, it
// changes nothing and returns no error.
func (s *Store) SetAwaited(ctx context.Context, repo events.RepoPath, fence uint64, awaited Awaited) error {
	if err := s.setHeld(ctx, repo, fence, awaitedField, awaited.text(), ""); err != nil {
		return fmt.Errorf("store what %s waits for: %w", repo, err)
	}
	return nil
}

// Chain returns the commits that ref named last, newest first, the last entries that announce them, if known, and the
// entry before which all changes announce commits that these replace; "" if that is unknown.
func (r Repo) Chain(ref events.Ref) (commits []string, entries map[string]string, until string) {
	entries = map[string]string{}
	parts := strings.Fields(r.fields[chainPrefix+ref.String()])
	if len(parts) == 0 {
		return nil, entries, ""
	}
	for _, part := range parts[1:] {
		commit, entry, known := strings.Cut(part, "@")
		if commits = append(commits, commit); known {
			entries[commit] = entry
		}
	}
	return commits, entries, strings.TrimPrefix(parts[0], "-")
}

// ChainFields returns the fields to set for what [Repo.Chain] returns.
func (r Repo) ChainFields(
	ref events.Ref, commits []string, entries map[string]string, until string,
) map[string]string {
	text := "-" + until
	for _, commit := range commits {
		text += " " + commit
		if entries[commit] != "" {
			text += "@" + entries[commit]
		}
	}
	if r.fields[chainPrefix+ref.String()] == text {
		return nil
	}
	return map[string]string{chainPrefix + ref.String(): text}
}
