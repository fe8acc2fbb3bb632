package cells

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

//go:embed forward.lua
var forwardSource string

var forwardScript = redis.NewScript(forwardSource)

// Forwarder hands the changes in the stream of one cell that belong to another cell over to that one.
//
// Two cells share no script, so it is two steps, and the caller does the second one: Forward adds the change
// to the stream of the other cell and leaves a mark there; then the caller settles the entry in its own
// stream. If it dies in between, the next Forward of the entry finds the mark and adds nothing.
type Forwarder struct {
	Directory *Directory
	Cell      string // name of the cell whose stream is read
}

// Forward adds a change to the stream of its cell, with the same ID, and returns the cell's name; or "" if
// the change belongs to this cell. The error is one of contention if the directory or the other cell does not
// answer. Unless the change belongs elsewhere, it sends no command.
func (f *Forwarder) Forward(msg *message.Message, entry string, repo events.RepoPath) (cell string, err error) {
	ctx := msg.Context()
	if f.here(f.Directory.Place(repo)) {
		return "", nil
	}
	if err := f.Directory.Refresh(ctx); err != nil {
		return "", park("refresh: %w", err)
	}
	place := f.Directory.Place(repo)
	if f.here(place) {
		return "", nil
	}
	if err := f.add(ctx, msg, entry, place); err != nil {
		return "", park("forward change to cell %s: %w", place.Name, err)
	}
	return place.Name, nil
}

// keepMark is how long a mark is kept: longer than entries are retried.
const keepMark = 15 * 24 * time.Hour

// here reports whether a repository with this place is in the forwarder's cell. It is if it is placed nowhere.
func (f *Forwarder) here(place Cell) bool { return place.Name == f.Cell || place.Name == "" }

// add is the first step. It retries nothing: the entry is redelivered.
func (f *Forwarder) add(ctx context.Context, msg *message.Message, entry string, to Cell) error {
	fields, err := stream.Fields(msg)
	if err != nil {
		return err
	}
	args := []any{keepMark.Milliseconds()}
	for _, field := range fields {
		args = append(args, field)
	}
	return forwardScript.Run(ctx, f.Directory.redis, []string{markOf(to.Prefix, f.Cell, entry), to.Prefix.Changes()},
		args...).Err()
}

// ForwardedTo returns the cell to which the change in an entry of a cell was forwarded, and its entry there; or false.
func (d *Directory) ForwardedTo(ctx context.Context, cell, entry string) (to Member, added string, ok bool, err error) {
	for _, m := range All(d.redis, d).Members() {
		if m.Name == cell {
			continue
		}
		added, err = d.redis.Get(ctx, markOf(m.Namespace, cell, entry)).Result()
		if err == nil {
			return m, added, true, nil
		}
		if !errors.Is(err, redis.Nil) {
			return Member{}, "", false, fmt.Errorf("look for change %s in cell %s: %w", entry, m.Name, err)
		}
	}
	return Member{}, "", false, nil
}

// markOf is the key of the mark that the change in an entry of the cell from was added to the stream of another cell.
func markOf(to events.Namespace, from, entry string) string {
	return to.Forwarded() + from + ":" + entry
}

func park(format string, args ...any) error {
	err := fmt.Errorf("directory of cells: %w", fmt.Errorf(format, args...))
	return &events.Error{Disposition: events.Contention, Scope: events.ScopeUs, Class: events.ClassInternal, Err: err}
}
