package watch

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // the script
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"

	"lockstep/events"
	"lockstep/events/stream"
)

var (
	//go:embed write.lua
	writeSource string
	writeScript = redis.NewScript(writeSource)
)

// source is who asks for the changes that follow from a change of the registry.
const source = "/lockstep/watch"

// mostTries is how often a change is tried that others come before. Each time one of them has got somewhere.
const mostTries = 200

var (
	errRaced = errors.New("its watches were changed meanwhile")
	errReply = errors.New("a script's reply makes no sense")
)

// edit has change change the documents of one repository's watches, by field, and writes what came of it. It
// may be called several times. Unless nothing changed, a look at the remote is asked for, or, when nothing
// is left, the removal of the clone; a quiet edit asks for nothing, and is not to be the last one's end.
func (r *Registry) edit(ctx context.Context, repo events.RepoPath, announce bool, change func(docs map[string]string) error) error {
	return r.untilWritten(ctx, repo, func() error {
		was, err := r.load(ctx, repo)
		if err != nil {
			return err
		}
		docs := maps.Clone(was.docs)
		if err := change(docs); err != nil {
			return err
		}
		if maps.Equal(docs, was.docs) {
			return nil
		}
		var asked []events.Change
		if announce {
			asked = append(asked, events.Change{Type: events.ChangeDue, Source: source, Repo: repo})
			if len(docs) == 0 {
				asked[0].Type, asked[0].Force = events.ChangeRemoved, true
			}
		}
		return r.write(ctx, asked, rewrite{was, docs})
	})
}

// untilWritten tries again for as long as somebody else was first.
func (r *Registry) untilWritten(ctx context.Context, repo events.RepoPath, try func() error) error {
	for range mostTries {
		if err := try(); !errors.Is(err, errRaced) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("change the watches of %s: given up after %d tries: %w", repo, mostTries, errRaced)
}

// rewrite is what is to be made of what is kept of a repository.
type rewrite struct {
	was  contents
	docs map[string]string
}

// args are the script's arguments.
func (w rewrite) args() []any {
	repo := w.was.repo
	if len(w.docs) == 0 {
		return []any{repo.Key(), w.was.version, "0", "0", 0, 0}
	}
	every, usual := pollOf(w.docs)
	polled := "0"
	if every > 0 || usual == "1" {
		polled = "1"
	}
	_, at := w.places()
	set := []any{"repo", w.was.spelled, "at", at, "interval", strconv.FormatInt(every.Milliseconds(), 10), "usual", usual}
	for _, field := range slices.Sorted(maps.Keys(w.docs)) {
		if w.docs[field] != w.was.docs[field] {
			set = append(set, field, w.docs[field])
		}
	}
	var drop []any
	for _, field := range slices.Sorted(maps.Keys(w.was.docs)) {
		if _, stays := w.docs[field]; !stays {
			drop = append(drop, field)
		}
	}
	args := append([]any{repo.Key(), w.was.version, "1", polled, len(drop)}, drop...)
	return append(append(args, len(set)), set...)
}

// places are where the set is found before it is written, and afterwards: one that was none, or will be none, where
// it is the other time.
func (w rewrite) places() (before, after string) {
	after = cmp.Or(placeOf(w.docs), w.was.at)
	return cmp.Or(w.was.at, after), after
}

// placeOf is the place of the remote that all watches of a repository name; "" when none can be read.
func placeOf(docs map[string]string) string {
	for _, doc := range docs {
		if w, err := parse([]byte(doc)); err == nil {
			return Place(w.URL)
		}
	}
	return ""
}

// pollOf says how often a repository is polled: the shortest interval that a watch names, 0 when none does,
// and "1" when one leaves it to the setting, else "0". What cannot be read leaves it to the setting.
func pollOf(docs map[string]string) (every time.Duration, usual string) {
	usual = "0"
	for _, doc := range docs {
		w, err := parse([]byte(doc))
		switch named := time.Duration(w.Poll); {
		case err != nil || w.Poll == 0:
			usual = "1"
		case w.Poll != Never && (every == 0 || named < every):
			every = named
		}
	}
	return every, usual
}

// write writes what is to become of repositories, and asks for the changes, in one step.
func (r *Registry) write(ctx context.Context, asked []events.Change, rewrites ...rewrite) error {
	keys := []string{r.namespace.Changes(), r.index(), r.namespace.Poll()}
	args := []any{rand.Text(), len(rewrites)}
	for _, w := range rewrites {
		before, after := w.places()
		keys = append(keys, r.of(w.was.repo), r.at(before), r.at(after))
		args = append(args, w.args()...)
	}
	args, err := appendChanges(ctx, args, asked)
	if err != nil {
		return err
	}
	reply, err := writeScript.Run(ctx, r.redis, keys, args...).StringSlice()
	switch {
	case err != nil:
		return fmt.Errorf("write the watches of %s: %w", rewrites[0].was.repo, err)
	case len(reply) == 1 && reply[0] == "written":
		return nil
	case len(reply) == 2 && reply[0] == "raced":
		return errRaced
	case len(reply) == 3 && reply[0] == "related":
		return related(reply[1], reply[2])
	}
	return fmt.Errorf("write the watches of %s: %w: %.100q", rewrites[0].was.repo, errReply, reply)
}

// appendChanges appends to a script's arguments how many changes there are, and the entry of each.
func appendChanges(ctx context.Context, args []any, changes []events.Change) ([]any, error) {
	args = append(args, len(changes))
	for _, c := range changes {
		entry, err := entryOf(ctx, c)
		if err != nil {
			return nil, err
		}
		args = append(append(args, len(entry)), entry...)
	}
	return args, nil
}

// entryOf is the names and values of a change's entry, which carries on the trace of ctx, if it has one.
func entryOf(ctx context.Context, c events.Change) ([]any, error) {
	c, err := events.NewChange(c)
	if err != nil {
		return nil, err
	}
	msg, err := stream.ChangeMessage(c)
	if err != nil {
		return nil, err
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(msg.Metadata))
	fields, err := stream.Fields(msg)
	if err != nil {
		return nil, fmt.Errorf("marshal change %s: %w", c.ID, err)
	}
	entry := make([]any, len(fields))
	for i, f := range fields {
		entry[i] = f
	}
	return entry, nil
}
