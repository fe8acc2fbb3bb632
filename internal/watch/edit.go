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
	"lockstep/internal/changes"
)

var (
	//go:embed write.lua
	writeSource string
	writeScript = redis.NewScript(writeSource)
)

const source = "/lockstep/watch" // source of the changes that the registry queues

// maxTries limits the attempts to write a set despite concurrent writers. Each conflict means that one writer
// succeeded.
const maxTries = 200

const redirected = 30 * 24 * time.Hour // how long MovedTo remembers a move

var (
	errRaced = errors.New("its watches were changed concurrently")
	errReply = errors.New("unexpected reply of a script")
)

// edit calls change to modify the documents of a repository's watches, by field, and writes the result. It
// calls change again after a conflict. If the documents changed and announce is set, it queues the changes of
// [rewrite.requests]. Without announce, change must not remove the last watch.
func (r *Registry) edit(
	ctx context.Context, repo events.RepoPath, announce bool, change func(docs map[string]string) error,
) error {
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
		w := rewrite{was: was, docs: docs}
		if !announce {
			return r.write(ctx, nil, w)
		}
		changes, err := w.requests(repo)
		if err != nil {
			return err
		}
		return r.write(ctx, changes, w)
	})
}

// untilWritten calls try again as long as it returns errRaced.
func (r *Registry) untilWritten(ctx context.Context, repo events.RepoPath, try func() error) error {
	for range maxTries {
		if err := try(); !errors.Is(err, errRaced) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("change the watches of %s: gave up after %d tries: %w", repo, maxTries, errRaced)
}

// rewrite replaces the stored documents of a repository.
type rewrite struct {
	was   contents
	docs  map[string]string
	to    events.RepoPath // the path that the watches move to; zero if they do not
	moves string          // the move between cells that writes it, see write.lua; "" for none
}

// requests returns the changes to queue with the write. A new watch concerns its app alone: each one requests
// a sync of its ref, or its app a poll if one has a pattern. One poll for all apps is requested if a watch is
// changed or removed, as its rules concerned them too, and if most of the watches are new: adding n watches,
// in however many steps, requests a number of changes proportional to n. Without any watch left, the clone is
// removed.
func (w rewrite) requests(repo events.RepoPath) ([]events.Change, error) {
	if len(w.docs) == 0 {
		return []events.Change{{Type: events.ChangeRemoved, Source: source, Repo: repo, Force: true}}, nil
	}
	var added []string
	same := 0
	for _, field := range slices.Sorted(maps.Keys(w.docs)) {
		switch before, existed := w.was.docs[field]; {
		case !existed:
			added = append(added, field)
		case w.docs[field] == before:
			same++
		}
	}
	if same < len(w.was.docs) || 2*len(added) > len(w.docs) {
		return []events.Change{{Type: events.ChangeDue, Source: source, Repo: repo}}, nil
	}
	var watches []Watch
	var changes []events.Change
	polled := map[string]bool{} // apps
	for _, field := range added {
		watch, err := parse([]byte(w.docs[field]))
		if err != nil {
			return nil, fmt.Errorf("watch %q of %s: %w", field, repo, err)
		}
		if _, isOne := watch.Ref.Ref(); !isOne && !polled[watch.App] {
			polled[watch.App] = true
			changes = append(changes, events.Change{Type: events.ChangeDue, Source: source, Repo: repo, App: watch.App})
		}
		watches = append(watches, watch)
	}
	id := "poll/" + rand.Text() // like those that a poll requests: pushes come first where a host limits requests
	for i, watch := range watches {
		if polled[watch.App] {
			continue // the poll also requests a sync of this ref
		}
		ref, _ := watch.Ref.Ref()
		change, err := watch.Change(fmt.Sprintf("%s/%d", id, i+1), source, ref, "")
		if err != nil {
			return nil, err
		}
		changes = append(changes, change)
	}
	return changes, nil
}

// args returns the arguments of write.lua for this repository.
func (w rewrite) args() []any {
	repo := w.was.repo
	if len(w.docs) == 0 {
		return []any{repo.Key(), w.was.version, "0", "0", w.moves, 0, 0}
	}
	every, usual := pollOf(w.docs)
	polled := "0"
	if every > 0 || usual == "1" {
		polled = "1"
	}
	_, at := w.remotes()
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
	args := append([]any{repo.Key(), w.was.version, "1", polled, w.moves, len(drop)}, drop...)
	return append(append(args, len(set)), set...)
}

// remotes returns the remote keys before and after the write. If one of them does not exist, both are the same.
func (w rewrite) remotes() (before, after string) {
	after = cmp.Or(remoteKeyOf(w.docs), w.was.at)
	return cmp.Or(w.was.at, after), after
}

// remoteKeyOf returns the key of the watches' remote, or "" if no watch can be decoded.
func remoteKeyOf(docs map[string]string) string {
	for _, doc := range docs {
		if w, err := parse([]byte(doc)); err == nil {
			return RemoteKey(w.URL)
		}
	}
	return ""
}

// pollOf returns the shortest interval that a watch sets, or 0 if none does, and "1" if a watch uses the default
// interval, else "0". A watch that cannot be decoded counts as using the default.
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

// write replaces the documents of repositories and queues changes, in one step.
func (r *Registry) write(ctx context.Context, changes []events.Change, rewrites ...rewrite) error {
	keys := []string{r.namespace.Changes(), r.index(), r.namespace.Poll()}
	polled := "0"
	if slices.ContainsFunc(changes, func(c events.Change) bool { return c.Type == events.ChangeDue && c.App == "" }) {
		polled = "1"
	}
	args := []any{rand.Text(), polled, len(rewrites)}
	for _, w := range rewrites {
		before, after := w.remotes()
		keys = append(keys, r.of(w.was.repo), r.at(before), r.at(after), r.namespace.Repo(w.was.repo))
		args = append(args, w.args()...)
	}
	args, err := appendChanges(ctx, args, changes)
	if err != nil {
		return err
	}
	for _, w := range rewrites {
		if !w.to.IsZero() {
			keys = append(keys, r.moved(w.was.repo), r.moved(w.to))
			args = append(args, w.to.String(), redirected.Milliseconds())
		}
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
		return nested(reply[1], reply[2])
	case len(reply) == 2 && reply[0] == "moved":
		return events.Errorf(events.Retryable, events.ClassBusy, "%s is in another cell; try again", reply[1])
	}
	return fmt.Errorf("write the watches of %s: %w: %.100q", rewrites[0].was.repo, errReply, reply)
}

// appendChanges appends the number of changes and the entry of each to a script's arguments.
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

// entryOf returns the field names and values of a change's entry. It propagates the trace of ctx, if any.
func entryOf(ctx context.Context, c events.Change) ([]any, error) {
	c, err := events.NewChange(c)
	if err != nil {
		return nil, err
	}
	msg, err := changes.Message(c)
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
