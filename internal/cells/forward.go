package cells

import (
	"cmp"
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

//go:embed forward.lua
var forwardSource string

var forwardScript = redis.NewScript(forwardSource)

// metadataEpoch is the metadata of a forwarded message with the epoch of the directory by which it was forwarded.
const metadataEpoch = "lockstep_epoch"

// Forwarder hands the changes in the stream of one cell that belong to another cell over to that one.
//
// Two cells share no script, so it is two steps, and the caller does the second one: Forward adds the change
// to the stream of the other cell and leaves a mark there; then the caller settles the entry in its own
// stream. If it dies in between, the next Forward of the entry finds the mark and adds nothing.
type Forwarder struct {
	Directory *Directory
	Cell      string        // name of the cell whose stream is read
	Keep      time.Duration // how long a mark is kept; must be longer than entries are retried; default 15 days
}

// Forward adds a change to the stream of its cell, with the same ID, and returns the cell's name; or "" if
// the change belongs to this cell. The error is one of contention if the copy of the directory is older than
// the one by which the change was forwarded here and cannot be refreshed, or if the other cell does not
// answer. Unless the change belongs elsewhere, it sends no command.
func (f *Forwarder) Forward(msg *message.Message, entry string, repo events.RepoPath) (cell string, err error) {
	ctx := msg.Context()
	epoch, _ := strconv.ParseInt(msg.Metadata.Get(metadataEpoch), 10, 64)
	place, own := f.Directory.placeAt(repo)
	if f.here(place) && own >= epoch {
		return "", nil
	}
	if err := f.Directory.Refresh(ctx); err != nil {
		return "", park("refresh: %w", err)
	}
	place, own = f.Directory.placeAt(repo)
	switch {
	case own < epoch:
		return "", park("epoch %d is older than epoch %d, by which change %.80q was forwarded here", own, epoch, msg.UUID)
	case f.here(place):
		return "", nil
	}
	if err := f.add(ctx, msg, entry, place, own); err != nil {
		return "", park("forward change to cell %s: %w", place.Name, err)
	}
	return place.Name, nil
}

// here reports whether a repository with this place is in the forwarder's cell. It is if it is placed nowhere.
func (f *Forwarder) here(place Cell) bool { return place.Name == f.Cell || place.Name == "" }

// add is the first step. It retries nothing: the entry is redelivered.
func (f *Forwarder) add(ctx context.Context, msg *message.Message, entry string, to Cell, epoch int64) error {
	forwarded := message.NewMessage(msg.UUID, msg.Payload)
	for name, value := range msg.Metadata {
		forwarded.Metadata.Set(name, value)
	}
	forwarded.Metadata.Set(metadataEpoch, strconv.FormatInt(epoch, 10))
	fields, err := stream.Fields(forwarded)
	if err != nil {
		return err
	}
	args := []any{cmp.Or(f.Keep, 15*24*time.Hour).Milliseconds()}
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
