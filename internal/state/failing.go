package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

// Failure is the last error of a repository for an app. It is forgotten when a later change of the same app succeeds, and when the
// app's watch is removed.
type Failure struct {
	App       string       `json:"app"`       // "" for a poll for all apps, and for changes requested without an app
	Ref       string       `json:"ref"`       // "" for the default branch, and for a poll
	Operation string       `json:"operation"` // sync, remove, move or poll
	Class     events.Class `json:"class"`
	Error     string       `json:"error,omitempty"` // one line, at most 300 bytes; names hosts and credentials, but contains no secret
	Attempts  int          `json:"attempts,omitempty"`
	Job       string       `json:"job"`            // ID of the change
	At        time.Time    `json:"at"`             // by Redis' clock
	Next      *time.Time   `json:"next,omitempty"` // next attempt at the change, by Redis' clock; nil if it was given up
}

// failureNote is the text of the note of a failure. The note has the times.
type failureNote struct {
	Repo      string       `json:"repo"` // in its original case
	App       string       `json:"app,omitempty"`
	Ref       string       `json:"ref,omitempty"`
	Operation string       `json:"operation"`
	Class     events.Class `json:"class"`
	Error     string       `json:"error"`
	Attempts  int          `json:"attempts,omitempty"`
	Job       string       `json:"job"`
}

const (
	failingField    = "failing"
	maxFailureError = 300 // bytes
	pollNote        = "(poll)"
)

// FailureNotes returns the notes to change after an attempt at a change: a failure adds a note, and any other result removes
// the notes that it makes obsolete. There is one note per app, and one for each of its refs with a separate failure.
func FailureNotes(namespace events.Namespace) func(change events.Change, result events.Result, attempts int) *stream.Notes {
	return func(change events.Change, result events.Result, attempts int) *stream.Notes {
		if result.Type != events.ResultFailed {
			return NotesOf(namespace, change.Repo, succeeded(change, result)...)
		}
		n := NotesOf(namespace, change.Repo)
		text, err := json.Marshal(failureNote{
			Repo: change.Repo.String(), App: change.App, Ref: change.Ref.String(), Operation: change.Type.Operation(), Class: result.Class,
			Error: clip(result.Error, maxFailureError), Attempts: attempts, Job: clip(change.ID, maxFailureError),
		})
		if err != nil { // impossible
			return nil
		}
		n.Name, n.Text = noteName(change, result.Class), string(text)
		return n
	}
}

// NotesOf returns the removal of notes of failures of a repository, by name.
func NotesOf(namespace events.Namespace, repo events.RepoPath, remove ...string) *stream.Notes {
	return &stream.Notes{
		Hash: namespace.Repo(repo), Field: failingField, Index: namespace.Failing(), Member: repo.Key(), Remove: remove,
	}
}

// noteName returns the name of a failure's note: "{ref} {app}", without the ref if the failure does not concern one.
func noteName(change events.Change, class events.Class) string {
	if change.Type == events.ChangeDue && change.App == "" {
		return pollNote
	}
	switch class {
	case events.ClassNoRef, events.ClassHostile, events.ClassQuota, events.ClassCorrupt, events.ClassLFS, events.ClassUnverified, events.ClassRewritten:
		return change.Ref.String() + " " + change.App
	}
	return " " + change.App
}

// succeeded returns the names of the notes that a success makes obsolete.
func succeeded(change events.Change, result events.Result) []string {
	switch {
	case result.Class == events.ClassUnwatched:
		return []string{" " + change.App, change.Ref.String() + " " + change.App}
	case change.Type == events.ChangeDue && result.Due == 0 && change.App != "": // those of the app's watches are
		return []string{pollNote, " " + change.App}
	case change.Type == events.ChangeDue && result.Due == 0: // all watched refs are up to date for all apps
		return []string{pollNote, " *"}
	case change.Type == events.ChangeDue:
		return []string{pollNote}
	case change.Type == events.ChangePushed:
		return []string{pollNote, " " + change.App, change.Ref.String() + " " + change.App, result.Ref.String() + " " + change.App}
	case change.Ref.IsZero(): // the repository was removed or moved
		return []string{"*"}
	}
	return []string{pollNote, " " + change.App, change.Ref.String() + " *"}
}

// UnwatchedNotes returns the names of the notes to remove with an app's watches of refs. all is true if the app has no other
// watch of the repository.
func UnwatchedNotes(app string, refs []string, all bool) []string {
	if all {
		return []string{"* " + app}
	}
	names := make([]string, len(refs))
	for i, ref := range refs {
		if at := strings.IndexAny(ref, "*?["); at >= 0 { // a pattern: all refs that may match it
			ref = ref[:at] + "*"
		}
		names[i] = ref + " " + app
	}
	return names
}

func clip(text string, limit int) string {
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit-len("…")], "") + "…"
	}
	return text
}

// Failing returns the last failures of the repository, newest first, up to 16, and its path in its original case, or "".
func (r Repo) Failing() (failures []Failure, spelled string) {
	spelled = r.Path()
	lines := strings.Split(r.fields[failingField], "\n")
	slices.Reverse(lines)
	for _, line := range lines { // of stream.Notes: name, time, time of the next attempt, and text
		parts := strings.SplitN(line, "\t", 4)
		var n failureNote
		if len(parts) != 4 || json.Unmarshal([]byte(parts[3]), &n) != nil {
			continue
		}
		f := Failure{App: n.App, Ref: n.Ref, Operation: n.Operation, Class: n.Class, Error: n.Error, Attempts: n.Attempts, Job: n.Job}
		at, _ := strconv.ParseInt(parts[1], 10, 64)
		f.At = momentOf(at)
		if next, _ := strconv.ParseInt(parts[2], 10, 64); next != 0 {
			moment := momentOf(next)
			f.Next = &moment
		}
		failures, spelled = append(failures, f), cmp.Or(spelled, n.Repo)
	}
	return failures, spelled
}

// FailingRepos are the repositories that failed last.
type FailingRepos struct {
	Total int64     // all that fail
	Repos []Summary // those that failed last, newest first

	Missing []string // names of cells that do not answer, whose repositories the list lacks; never set by Store
}

// Failing returns the repositories that failed last, up to limit.
func (s *Store) Failing(ctx context.Context, limit int) (FailingRepos, error) {
	failing, err := s.failing(ctx, limit)
	if err != nil {
		return FailingRepos{}, fmt.Errorf("list failing repositories: %w", err)
	}
	return failing, nil
}

func (s *Store) failing(ctx context.Context, limit int) (FailingRepos, error) {
	now, err := stream.Time(ctx, s.redis, s.namespace.Failing())
	if err != nil {
		return FailingRepos{}, err
	}
	var total *redis.IntCmd
	var newest *redis.StringSliceCmd
	_, err = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		total = pipe.ZCard(ctx, s.namespace.Failing())
		newest = pipe.ZRevRange(ctx, s.namespace.Failing(), 0, int64(limit)-1)
		return nil
	})
	if err != nil {
		return FailingRepos{}, err
	}
	base := string(s.namespace) + "repo:"
	keys := make([]string, len(newest.Val()))
	for i, member := range newest.Val() {
		keys[i] = base + member
	}
	repos, err := s.summaries(ctx, base, keys, now)
	if err != nil {
		return FailingRepos{}, err
	}
	repos = slices.DeleteFunc(repos, func(summary Summary) bool { return len(summary.Failing) == 0 }) // it has succeeded meanwhile
	return FailingRepos{Total: total.Val(), Repos: repos}, nil
}

// NextPoll returns when a repository is polled next, by Redis' clock, or the zero time if it is not polled.
func (s *Store) NextPoll(ctx context.Context, repo events.RepoPath) (time.Time, error) {
	ms, err := s.redis.ZScore(ctx, s.namespace.Poll(), repo.Key()).Result()
	if errors.Is(err, redis.Nil) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next poll of %s: %w", repo, err)
	}
	return momentOf(int64(ms)), nil
}
