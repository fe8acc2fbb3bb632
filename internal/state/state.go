// Package state reads what Redis remembers of a repository between syncs, and names the fields in
// which the settle script writes it down.
//
//	repo                spelled path
//	url                 remote last synced from
//	fence               of the lease under which the last change was settled
//	synced              when that was, RFC 3339
//	head:{ref}          commit published for ref
//	given:{ref}:{app}   commit that app was last given for ref; a ref has no colon in it
//	asked:{ref}:{cred}  "{entry} {ref} {commit} {url}": the last entry of the stream just before the remote was
//	                    asked with that credential where ref stands, the ref resolved, the answer, and who gave it
//	newest:{ref}:{app}  newest entry known that announces a commit for ref to app
//	look:{ref}          "{entry} {n} {entry} {n} …": the commit that an entry announces was not there yet, n
//	                    times; the newest 32 of these entries, the oldest first
//	watched:{ref}       "1" once a sync of ref was asked for by a watch
//	byhand:{ref}        "1" once one was asked for by hand
//	tombstone           stream entry of the removal that deleted the clone
//	failures            failures in a row, of those that count; "0" or absent after a success
//	circuit_trips       how often the circuit breaker has opened in a row; likewise
//	circuit_open_until  when it half-opens, in ms of Redis' clock; likewise
package state

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Store loads repositories' state.
type Store struct {
	redis     redis.Cmdable
	namespace events.Namespace
}

// NewStore loads through client from the keys of namespace.
func NewStore(client redis.Cmdable, namespace events.Namespace) *Store {
	return &Store{redis: client, namespace: namespace}
}

// Repo is what is known of one repository; the zero value knows nothing.
type Repo struct{ fields map[string]string }

// RepoOf returns the state with the given fields.
func RepoOf(fields map[string]string) Repo { return Repo{fields} }

// Load returns the state of repo.
func (s *Store) Load(ctx context.Context, repo events.RepoPath) (Repo, error) {
	fields, err := s.Fields(ctx, repo)
	return Repo{fields}, err
}

// Fields returns the fields of repo's state, none if it is unknown.
func (s *Store) Fields(ctx context.Context, repo events.RepoPath) (map[string]string, error) {
	fields, err := s.redis.HGetAll(ctx, s.namespace.Repo(repo)).Result()
	if err != nil {
		return nil, fmt.Errorf("load the state of %s: %w", repo, err)
	}
	return fields, nil
}

// Given is the commit that app was last given for ref, or "".
func (r Repo) Given(app string, ref events.Ref) string {
	return r.fields[givenField(app, ref)]
}

// Heads maps each ref to the commit published for it.
func (r Repo) Heads() map[string]string {
	heads := map[string]string{}
	for field, commit := range r.fields {
		if ref, ok := strings.CutPrefix(field, "head:"); ok {
			heads[ref] = commit
		}
	}
	return heads
}

// Spelled is the path as last reported, or "".
func (r Repo) Spelled() string { return r.fields["repo"] }

// Fence is that of the last settled change, or 0.
func (r Repo) Fence() uint64 {
	n, _ := strconv.ParseUint(r.fields["fence"], 10, 64)
	return n
}

// Synced is when the last sync was settled; zero when none was.
func (r Repo) Synced() time.Time {
	t, _ := time.Parse(time.RFC3339Nano, r.fields["synced"])
	return t
}

// Buried reports whether the clone was removed by a later entry than the given one, so that what
// the entry asks is past. It is not when there is a clone again.
func (r Repo) Buried(entry string) bool {
	tombstone := r.fields["tombstone"]
	return tombstone != "" && r.fields["synced"] == "" && (entry == tombstone || events.EntryAfter(tombstone, entry))
}

// Asked is what the remote once said.
type Asked struct {
	URL    string     // the remote
	Until  string     // id of the last entry of the stream just before it was asked
	Ref    events.Ref // the ref, resolved
	Commit string     // where it stood
}

// Asked returns what the remote at url last said of ref, as asked for in a change, to that
// credential. It is false when it was never asked, or another remote was.
func (r Repo) Asked(url string, ref events.Ref, credential string) (Asked, bool) {
	parts := strings.SplitN(r.fields[askedField(ref, credential)], " ", 4) // a URL may have spaces
	if len(parts) != 4 || parts[3] != url {
		return Asked{}, false
	}
	resolved, err := events.ParseRef(parts[1])
	return Asked{URL: url, Until: parts[0], Ref: resolved, Commit: parts[2]}, err == nil
}

// Newest is the newest entry known that announces a commit for ref to app, or "".
func (r Repo) Newest(ref events.Ref, app string) string { return r.fields[NewestField(ref, app)] }

// Behind returns how often the remote did not have the commit yet that an entry announces for ref. It is huge for an entry
// older than all that are remembered.
func (r Repo) Behind(ref events.Ref, entry string) int {
	remembered := strings.Fields(r.fields[lookField(ref)])
	for i := 0; i+1 < len(remembered); i += 2 {
		if remembered[i] == entry {
			looks, _ := strconv.Atoi(remembered[i+1])
			return looks
		}
	}
	if len(remembered) == 2*looksKept && events.EntryAfter(remembered[0], entry) {
		return math.MaxInt
	}
	return 0
}

// looksKept bounds of how many entries looks are remembered, the newest ones. Apps that follow the same
// ref have one each.
const looksKept = 32

// SetBehind stores that number. The caller holds the repository's lease.
func (s *Store) SetBehind(ctx context.Context, repo events.RepoPath, ref events.Ref, entry string, looks int) error {
	err := s.setLooks(ctx, s.namespace.Repo(repo), lookField(ref), entry, looks)
	if err != nil {
		return fmt.Errorf("note in the state of %s that the remote is behind: %w", repo, err)
	}
	return nil
}

func (s *Store) setLooks(ctx context.Context, key, field, entry string, looks int) error {
	value, err := s.redis.HGet(ctx, key, field).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	kept := slices.Collect(slices.Chunk(strings.Fields(value), 2))
	kept = slices.DeleteFunc(kept, func(look []string) bool { return look[0] == entry })
	at := slices.IndexFunc(kept, func(look []string) bool { return events.EntryAfter(look[0], entry) })
	if at < 0 {
		at = len(kept)
	}
	kept = slices.Insert(kept, at, []string{entry, strconv.Itoa(looks)})
	kept = kept[max(0, len(kept)-looksKept):]
	return s.redis.HSet(ctx, key, field, strings.Join(slices.Concat(kept...), " ")).Err()
}

// AskedFields are the fields that a settled sync sets which has asked the remote for ref.
func AskedFields(ref events.Ref, credential string, a Asked) map[string]string {
	value := a.Until + " " + a.Ref.String() + " " + a.Commit + " " + a.URL
	return map[string]string{askedField(ref, credential): value, askedField(a.Ref, credential): value}
}

// NewestFields are the fields that name the newest entry that announces a commit for ref to app.
func NewestFields(ref events.Ref, app, entry string) map[string]string {
	return map[string]string{NewestField(ref, app): entry}
}

func askedField(ref events.Ref, credential string) string {
	return "asked:" + ref.String() + ":" + credential
}

// NewestField is the field that names the newest entry that announces a commit for ref to app.
func NewestField(ref events.Ref, app string) string { return "newest:" + ref.String() + ":" + app }

func lookField(ref events.Ref) string { return "look:" + ref.String() }

// AskedByFields are the fields that say of a settled sync of ref whether a watch has asked for it.
func AskedByFields(change events.Change, ref events.Ref) map[string]string {
	if change.Watched {
		return map[string]string{"watched:" + ref.String(): "1"}
	}
	return map[string]string{"byhand:" + ref.String(): "1"}
}

// Watched reports whether a watch ever asked for the clone that there is.
func (r Repo) Watched() bool {
	for name := range r.fields {
		if strings.HasPrefix(name, "watched:") {
			return true
		}
	}
	return false
}

// ForWatches reports whether ref was asked for by watches, and never by hand.
func (r Repo) ForWatches(ref events.Ref) bool {
	return r.fields["watched:"+ref.String()] != "" && r.fields["byhand:"+ref.String()] == ""
}

// Head is the commit published for ref, or "".
func (r Repo) Head(ref events.Ref) string { return r.fields["head:"+ref.String()] }

// FieldsOf are the fields that are about ref alone.
func (r Repo) FieldsOf(ref events.Ref) []string {
	var names []string
	for name := range r.fields {
		kind, rest, _ := strings.Cut(name, ":")
		about, _, _ := strings.Cut(rest, ":") // a ref has no colon in it
		switch kind {
		case "head", "given", "asked", "newest", "look", "watched", "byhand":
			if about == ref.String() {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// MovedFields are the fields that a settled move sets at the new path: what is published, what each app was
// last given, since when, and whatever else a newer version has written. What the new path knows already,
// there, stands.
func (r Repo) MovedFields(there Repo, to events.RepoPath, url string, fence uint64) map[string]string {
	fields := map[string]string{"repo": to.String(), "url": url}
	for name, value := range r.fields {
		kind, _, _ := strings.Cut(name, ":")
		switch kind {
		case "repo", "url", "fence", "tombstone", "asked", "newest", "look", failuresField, tripsField, openUntilField:
			// They are about the old path, its remote, or the changes that were addressed to it.
		default:
			fields[name] = value
		}
	}
	for name := range there.fields {
		delete(fields, name)
	}
	fields["fence"] = strconv.FormatUint(fence, 10)
	return fields
}

// FenceFields are the fields that a settled change sets whatever else it does.
func FenceFields(result events.Result) map[string]string {
	return map[string]string{"fence": strconv.FormatUint(result.Fence, 10)}
}

// SyncedFields are the fields that a settled sync sets.
func SyncedFields(result events.Result, url string) map[string]string {
	return map[string]string{
		"repo":   result.Repo.String(),
		"url":    url,
		"fence":  strconv.FormatUint(result.Fence, 10),
		"synced": result.Time.UTC().Format(time.RFC3339Nano),

		"head:" + result.Ref.String():      result.After,
		givenField(result.App, result.Ref): result.After,
	}
}

// RemovedFields are the fields that stay when a settled removal has cleared all others.
func RemovedFields(result events.Result, entry string) map[string]string {
	return map[string]string{
		"repo":      result.Repo.String(),
		"fence":     strconv.FormatUint(result.Fence, 10),
		"tombstone": entry,
	}
}

func givenField(app string, ref events.Ref) string { return "given:" + ref.String() + ":" + app }
