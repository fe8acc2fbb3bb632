package state

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/locking"
)

// A repository is in one cell. Its state says so in the field [cellField], which a deployment without cells never has:
//
//	(absent)                                 it is here
//	moved {cell} {epoch} {entry} [pinned]    it was moved to that cell; entry is the last result here
//
// Once it has arrived, [fromField] says where it came from, as long as it is here:
//
//	{cell} {epoch} {ms}             that cell serves it, until this one has published it; ms is when it arrived
//	{cell} {epoch} {ms} fetched     this cell has published it
//
// The field changes only under the lease, and everything that works on a repository reads it under the lease.
// So no handler that found it absent can still be at work when it is set: setting it needs the lease, and
// settling needs the fence of a lease that is still held.
const (
	cellField = "cell"
	fromField = "from"

	fetched = " fetched"
)

// CellMove is a move of a repository between two cells.
type CellMove struct {
	Repo  events.RepoPath
	Cell  string // the other cell
	Epoch int64  // of the directory when the move began
	Pin   bool   // the repository stays there, whatever the weights
}

// MovedMark returns the beginning of the mark in the state of a repository that has left by the move.
func (m CellMove) MovedMark() string { return fmt.Sprint("moved ", m.Cell, " ", m.Epoch) }

// ArrivesMark is for the watches of a repository that arrives by the move: its state must know of no such or later one.
func (m CellMove) ArrivesMark() string { return fmt.Sprint("arrives ", m.Epoch) }

func (m CellMove) args(guard locking.Guard) []any {
	return []any{guard.Owner, strconv.FormatUint(guard.Fence, 10), m.Cell, strconv.FormatInt(m.Epoch, 10)}
}

// MovedToCell returns the move by which the repository has left this cell, and the last entry in the stream
// of results at that moment, "0-0" if it was empty. It returns false if the repository has not left.
func (r Repo) MovedToCell() (move CellMove, last string, ok bool) {
	kind, cell, epoch, rest := parseCell(r.fields[cellField])
	last, pinned, _ := strings.Cut(rest, " ")
	return CellMove{Cell: cell, Epoch: epoch, Pin: pinned != ""}, last, kind == "moved"
}

// ServedBy returns the move by which a repository has come to this cell without having been published here yet: the
// other cell serves it. It returns false if this one does.
func (s *Store) ServedBy(ctx context.Context, repo events.RepoPath) (CellMove, bool, error) {
	from, err := s.redis.HGet(ctx, s.namespace.Repo(repo), fromField).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return CellMove{}, false, fmt.Errorf("read where %s came from: %w", repo, err)
	}
	known := Repo{fields: map[string]string{fromField: from}}
	if known.isFetched() {
		return CellMove{}, false, nil
	}
	move, _ := known.From()
	known, err = s.LoadReadable(ctx, repo)
	return move, known.IsUnfetched(), err
}

// IsHere reports whether the repository is in this cell, as far as the state tells.
func (r Repo) IsHere() bool { return r.fields[cellField] == "" }

func parseCell(value string) (kind, cell string, epoch int64, rest string) {
	parts := append(strings.SplitN(value, " ", 4), "")
	if len(parts) < 4 {
		return value, "", 0, ""
	}
	epoch, _ = strconv.ParseInt(parts[2], 10, 64)
	return parts[0], parts[1], epoch, parts[3]
}

// elsewhereDelay is how soon a change of a repository that is being moved is tried again: after the mark, a move needs
// less than a second.
const elsewhereDelay = 500 * time.Millisecond

// CheckHere returns an error of the class [events.ClassBusy] unless the repository is in this cell. Call it
// under the lease, with the state read under it.
func (r Repo) CheckHere(repo events.RepoPath) error {
	if r.IsHere() {
		return nil
	}
	move, _, _ := r.MovedToCell()
	return &events.Error{
		Disposition: events.Contention, Scope: events.ScopeNone, Class: events.ClassBusy, RetryAfter: elsewhereDelay,
		Err: fmt.Errorf("%s is not in this cell: it was moved to cell %s", repo, move.Cell),
	}
}

// From returns the move by which the repository has come to this cell, or false.
func (r Repo) From() (CellMove, bool) {
	_, cell, epoch, _ := parseCell("from " + r.fields[fromField])
	return CellMove{Cell: cell, Epoch: epoch}, cell != ""
}

// FromFields returns the field to keep when the others are cleared.
func (r Repo) FromFields() map[string]string {
	if value := r.fields[fromField]; value != "" {
		return map[string]string{fromField: value}
	}
	return nil
}

// How long a repository of which this cell has published some refs waits for the others, which it may be unable to publish.
// The clocks of processes may differ by less than that.
const (
	serveWait = 10 * time.Minute // readers are served from the other cell
	keepWait  = 24 * time.Hour   // the other cell keeps its files
)

// IsUnfetched reports whether the repository has come from another cell, and this one has not published yet what
// apps were given there: nothing of it or, within some minutes, not all refs that watches have requested.
func (r Repo) IsUnfetched() bool { return r.lacks("") && !r.hasWaited(serveWait) }

// NeedsOther reports whether the repository has come from another cell whose files are not to be removed yet: it is
// IsUnfetched within a day.
func (r Repo) NeedsOther() bool { return r.lacks("") && !r.hasWaited(keepWait) }

// hasWaited reports whether a part of the repository is published, and the rest was waited for that long.
func (r Repo) hasWaited(d time.Duration) bool {
	return len(r.Heads()) > 0 && time.Since(r.arrivedAt()) > d
}

// lacks reports whether something is to be fetched yet, once ref is published, too.
func (r Repo) lacks(ref string) bool {
	if r.isFetched() {
		return false
	}
	heads, given := r.Heads(), false
	for _, one := range r.AllGiven() {
		given = true
		if one.Ref != ref && heads[one.Ref] == "" && r.fields["watched:"+one.Ref] != "" {
			return true
		}
	}
	return given && ref == "" && len(heads) == 0
}

// arrivedAt returns when the repository came to this cell, the zero time if it did not.
func (r Repo) arrivedAt() time.Time {
	_, _, _, rest := parseCell("from " + r.fields[fromField])
	ms, _, _ := strings.Cut(rest, " ")
	at, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(at)
}

// FetchedFields returns the field to set once ref is published, if nothing is to be fetched any more after that.
func (r Repo) FetchedFields(ref events.Ref) map[string]string {
	if r.isFetched() || r.lacks(ref.String()) {
		return nil
	}
	return map[string]string{fromField: r.fields[fromField] + fetched}
}

// RefusedAs returns the state with the troubles, and so the refused credentials, of another state of the repository.
func (r Repo) RefusedAs(other Repo) Repo {
	fields := maps.Clone(r.fields)
	delete(fields, TroubleField)
	if text := other.fields[TroubleField]; text != "" {
		fields[TroubleField] = text
	}
	return Repo{fields: fields, watched: r.watched}
}

// isFetched reports whether the state says that nothing is to be fetched any more, or that it came from no cell.
func (r Repo) isFetched() bool {
	from := r.fields[fromField]
	return from == "" || strings.HasSuffix(from, fetched)
}

// CarriedToCell returns the fields that a repository takes to another cell, where nothing is published. Entry IDs of
// two cells cannot be compared, so the answers of the remote that coalescing reuses, the newest announcements and
// the tombstone stay behind, and so do failures.
func (r Repo) CarriedToCell() map[string]string {
	fields := r.Exported()
	for name, value := range fields {
		d := parseDelivery(value)
		switch kind, _, _ := strings.Cut(name, ":"); {
		case kind == "head":
			delete(fields, name)
		case kind+":" == givenPrefix && !strings.ContainsAny(d.tree[:1], mayHaveMissed+mayHaveMore):
			d.tree = elsewhere
			fields[name] = d.String()
		}
	}
	return fields
}

var (
	//go:embed cell/*.lua
	cellScripts embed.FS

	departScript   = cellScript("depart")
	vacateScript   = cellScript("vacate")
	activateScript = cellScript("activate")
)

func cellScript(name string) *redis.Script {
	text := ""
	for _, part := range []string{"lease", name} {
		source, err := cellScripts.ReadFile("cell/" + part + ".lua")
		if err != nil {
			panic(err)
		}
		text += string(source)
	}
	return redis.NewScript(text)
}

// runCell runs a script of a move under the repository's lease. It returns an error that wraps
// [locking.ErrLost] if that is not held, and one of the class [events.ClassConflict] if the reply is not
// want.
func (s *Store) runCell(
	ctx context.Context, client redis.Scripter, script *redis.Script, move CellMove, guard locking.Guard, want string,
	keys []string, args ...any,
) error {
	keys = append([]string{guard.Key, s.namespace.Repo(move.Repo)}, keys...)
	reply, err := script.Run(ctx, client, keys, append(move.args(guard), args...)...).StringSlice()
	switch {
	case err != nil:
		return fmt.Errorf("move %s: %w", move.Repo, err)
	case len(reply) > 0 && reply[0] == want:
		return nil
	case len(reply) == 1 && reply[0] == "lost":
		return fmt.Errorf("move %s: %w", move.Repo, locking.ErrLost)
	}
	return events.Errorf(events.Permanent, events.ClassConflict,
		"move %s: it is elsewhere, or has come by another move: %.200q", move.Repo, reply)
}

// Depart marks a repository as moved to another cell, which is the commit point of the move. Its polls end. It is
// safe to repeat. The rest of the move is due after hold. client is that of the master, for a caller that then waits
// for replicas.
func (s *Store) Depart(
	ctx context.Context, client redis.Scripter, move CellMove, guard locking.Guard, hold time.Duration,
) error {
	pinned := ""
	if move.Pin {
		pinned = " pinned"
	}
	keys := []string{s.namespace.Poll(), s.namespace.Results(), s.namespace.Departing(), s.namespace.Failing()}
	return s.runCell(ctx, client, departScript, move, guard, "moved", keys, move.Repo.Key(), move.Repo.String(), pinned,
		hold.Milliseconds())
}

// Vacate removes the state of a repository that [Store.Depart] has marked, except for the mark.
func (s *Store) Vacate(ctx context.Context, move CellMove, guard locking.Guard) error {
	return s.runCell(ctx, s.redis, vacateScript, move, guard, "vacated", []string{s.namespace.Views(move.Repo)})
}

// Activate stores the state of a repository that arrives from another cell, in place of what is left of an earlier
// stay: of which something is to be fetched, or nothing. It is safe to repeat.
func (s *Store) Activate(
	ctx context.Context, move CellMove, guard locking.Guard, fields, views map[string]string, fetches bool,
) error {
	var args []any
	if !fetches {
		fields = maps.Clone(fields)
		fields[fromField] = strings.TrimSpace(fetched)
	}
	for _, all := range []map[string]string{fields, views} {
		args = append(args, 2*len(all))
		for name, value := range maps.All(all) {
			args = append(args, name, value)
		}
	}
	return s.runCell(ctx, s.redis, activateScript, move, guard, "active", []string{s.namespace.Views(move.Repo)},
		args...)
}

// IsOccupied reports whether there is a repository here, which must not be replaced by one from another cell. Failures
// of changes that were sent here by mistake are none.
func (r Repo) IsOccupied() bool { return r.IsHere() && r.has("synced", "head", "given", "moved") }

// IsVacated reports whether only the mark of [Store.Depart] is left.
func (r Repo) IsVacated() bool {
	for name := range r.fields {
		if name != cellField && name != "repo" && name != "fence" {
			return false
		}
	}
	_, _, departed := r.MovedToCell()
	return departed
}
