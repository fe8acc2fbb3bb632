// Package state reads the state that Redis keeps of each repository between syncs, and defines the fields that the
// settle script writes. It also stores the workers' activity reports.
//
// The state of a repository is a hash with these fields:
//
//	repo                path in its original case
//	url                 remote of the last sync
//	fence               fence of the lease under which the last change was settled
//	synced              time of the last settled sync, RFC 3339
//	head:{ref}          published commit of ref
//	default             ref that was last published under the plain name
//	given:{ref}:{app}   commit of ref last delivered to app; a ref contains no colon
//	given_earlier:{ref}:{app}
//	                    commits of ref delivered to app before that one, at most 4, newest first, separated by spaces
//	repeat:{ref}:{app}  the app may have missed the result with that commit, so the next sync repeats it; absent
//	                    after that
//	asked:{ref}:{cred}  "{entry} {ref} {commit} {url}": the remote's last answer for ref with that credential:
//	                    last entry of the stream before the request, resolved ref, commit, and remote
//	newest:{ref}:{app}  newest known entry that announces a commit of ref to app
//	look:{ref}          "{entry} {n} {entry} {n} …": how often the commit announced by an entry was missing at the
//	                    remote, for the newest 32 such entries, oldest first
//	watched:{ref}       "1" once a watch has requested a sync of ref
//	byhand:{ref}        "1" once a sync of ref was requested other than by a watch
//	tombstone           stream entry of the removal that deleted the clone
//	moved:{path}        "{entry} {remote}": the repository that was here has moved to path, where it has that
//	                    remote, by the move with that stream entry; empty if it has come back
//	check:{ref}         last check of ref's commit by the rules of its watches, as JSON: see [Check]
//	refused             refs whose commit is refused, separated by spaces; may list refs that are gone
//	missing:{ref}       submodules that the published tree of ref lacks, as JSON: see [Missing]
//	missing             refs whose trees lack submodules, separated by spaces; may list refs that are gone
//	leftout             refs that watches select, but that the last poll has left out, as JSON: see [LeftOut]
//	hosts               hosts and credentials that the last sync needed, as [hosts.Target], separated by spaces
//	trouble             last error of each scope that fails, as JSON: see [Trouble]; absent if none does
//	cell                the repository is not in this cell: see [CellMove]; absent if it is
//	follows             last result of the repository in the cell that it came from: see [events.Follows]; absent
//	                    if it came from none
package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Store reads and writes repositories' state. It is safe for concurrent use.
type Store struct {
	redis     redis.UniversalClient
	namespace events.Namespace
}

// NewStore returns a Store for the keys of namespace.
func NewStore(client redis.UniversalClient, namespace events.Namespace) *Store {
	return &Store{redis: client, namespace: namespace}
}

// Repo is the state of one repository. The zero value has no state.
type Repo struct {
	fields  map[string]string
	watched bool // only read where [Repo.Summary] needs it
}

// RepoOf returns the state with the given fields.
func RepoOf(fields map[string]string) Repo { return Repo{fields: fields} }

// Load returns the state of repo, which is zero if there is none.
func (s *Store) Load(ctx context.Context, repo events.RepoPath) (Repo, error) {
	fields, err := s.Fields(ctx, repo)
	return Repo{fields: fields}, err
}

// Fields returns the fields of repo's state, none if it has no state. More than about 8,000 are not read
// atomically: see [Store.read].
func (s *Store) Fields(ctx context.Context, repo events.RepoPath) (map[string]string, error) {
	return s.read(ctx, repo, "")
}

// HostsField is the field with the hosts and credentials that the last sync needed.
const HostsField = "hosts"

// Hosts returns the hosts and credentials that the last sync of repo needed, "" if they are not known.
func (s *Store) Hosts(ctx context.Context, repo events.RepoPath) (string, error) {
	value, err := s.redis.HGet(ctx, s.namespace.Repo(repo), HostsField).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("load the hosts of %s: %w", repo, err)
	}
	return value, nil
}

// Heads returns the published commit of each ref.
func (r Repo) Heads() map[string]string {
	heads := map[string]string{}
	for field, commit := range r.fields {
		if ref, ok := strings.CutPrefix(field, "head:"); ok {
			heads[ref] = commit
		}
	}
	return heads
}

// Path returns the path as last reported, in its original case, or "".
func (r Repo) Path() string { return r.fields["repo"] }

// Fence returns the fence of the last settled change, or 0.
func (r Repo) Fence() uint64 {
	n, _ := strconv.ParseUint(r.fields["fence"], 10, 64)
	return n
}

// Synced returns when the last sync was settled, or the zero time if none was.
func (r Repo) Synced() time.Time {
	t, _ := time.Parse(time.RFC3339Nano, r.fields["synced"])
	return t
}

// RemovedSince reports whether the clone was removed by the given entry or a later one, which makes the entry obsolete.
// It returns false if the repository has been cloned again.
func (r Repo) RemovedSince(entry string) bool {
	tombstone := r.fields["tombstone"]
	return tombstone != "" && r.fields["synced"] == "" && (entry == tombstone || events.EntryAfter(tombstone, entry))
}

// RemoteRef is the last known position of a ref at a remote.
type RemoteRef struct {
	URL    string     // the remote
	Until  string     // ID of the last entry of the stream before the remote was asked
	Ref    events.Ref // the resolved ref
	Commit string
}

// RemoteRef returns the last answer of the remote at url for ref, as spelled in a change, with the given credential. It
// returns false if that remote has not been asked, or another one has been asked since.
func (r Repo) RemoteRef(url string, ref events.Ref, credential string) (RemoteRef, bool) {
	parts := strings.SplitN(r.fields[askedField(ref, credential)], " ", 4) // a URL may contain spaces
	if len(parts) != 4 || parts[3] != url {
		return RemoteRef{}, false
	}
	resolved, err := events.ParseRef(parts[1])
	return RemoteRef{URL: url, Until: parts[0], Ref: resolved, Commit: parts[2]}, err == nil
}

// Source returns the only credential with which the remote was asked for ref, and its last answer. ok is
// false if there are several or none.
func (r Repo) Source(ref events.Ref) (credential string, answer RemoteRef, ok bool) {
	found := 0
	for field, value := range r.fields {
		name, asked := strings.CutPrefix(field, askedField(ref, ""))
		if !asked {
			continue
		}
		if parts := strings.SplitN(value, " ", 4); len(parts) == 4 {
			credential = name
			answer, ok = r.RemoteRef(parts[3], ref, name)
		}
		found++
	}
	return credential, answer, ok && found == 1
}

// Newest returns the newest known entry that announces a commit of ref to app, or "".
func (r Repo) Newest(ref events.Ref, app string) string { return r.fields[NewestField(ref, app)] }

// Misses returns how often the commit announced by an entry for ref was missing at the remote. If the entry is older
// than all entries with a stored count, it returns math.MaxInt, so that the caller gives up on it.
func (r Repo) Misses(ref events.Ref, entry string) int {
	counts := strings.Fields(r.fields[lookField(ref)])
	for i := 0; i+1 < len(counts); i += 2 {
		if counts[i] == entry {
			misses, _ := strconv.Atoi(counts[i+1])
			return misses
		}
	}
	if len(counts) == 2*maxMissEntries && events.EntryAfter(counts[0], entry) {
		return math.MaxInt
	}
	return 0
}

const maxMissEntries = 32 // entries per ref whose misses are stored; each app has its own entries

// SetMisses stores the number returned by [Repo.Misses]. The caller must hold the repository's lease.
func (s *Store) SetMisses(ctx context.Context, repo events.RepoPath, ref events.Ref, entry string, misses int) error {
	key, field := s.namespace.Repo(repo), lookField(ref)
	value, err := s.redis.HGet(ctx, key, field).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("load from the state of %s that the remote is behind: %w", repo, err)
	}
	kept := slices.Collect(slices.Chunk(strings.Fields(value), 2))
	kept = slices.DeleteFunc(kept, func(pair []string) bool { return pair[0] == entry })
	at := slices.IndexFunc(kept, func(pair []string) bool { return events.EntryAfter(pair[0], entry) })
	if at < 0 {
		at = len(kept)
	}
	kept = slices.Insert(kept, at, []string{entry, strconv.Itoa(misses)})
	kept = kept[max(0, len(kept)-maxMissEntries):]
	if err := s.redis.HSet(ctx, key, field, strings.Join(slices.Concat(kept...), " ")).Err(); err != nil {
		return fmt.Errorf("store in the state of %s that the remote is behind: %w", repo, err)
	}
	return nil
}

// RemoteRefFields returns the fields to set for a sync that has asked the remote for ref.
func RemoteRefFields(ref events.Ref, credential string, remote RemoteRef) map[string]string {
	value := remote.Until + " " + remote.Ref.String() + " " + remote.Commit + " " + remote.URL
	return map[string]string{askedField(ref, credential): value, askedField(remote.Ref, credential): value}
}

// NewestFields returns the fields to set for the newest entry that announces a commit of ref to app.
func NewestFields(ref events.Ref, app, entry string) map[string]string {
	return map[string]string{NewestField(ref, app): entry}
}

func askedField(ref events.Ref, credential string) string {
	return "asked:" + ref.String() + ":" + credential
}

// NewestField returns the name of the field with the newest entry that announces a commit of ref to app.
func NewestField(ref events.Ref, app string) string { return "newest:" + ref.String() + ":" + app }

func lookField(ref events.Ref) string { return "look:" + ref.String() }

// OriginFields returns the fields to set for a sync of ref, which record whether a watch requested it.
func OriginFields(change events.Change, ref events.Ref) map[string]string {
	if change.Watched {
		return map[string]string{"watched:" + ref.String(): "1"}
	}
	return map[string]string{"byhand:" + ref.String(): "1"}
}

// Watched reports whether a watch has ever requested a sync of the current clone.
func (r Repo) Watched() bool {
	for name := range r.fields {
		if strings.HasPrefix(name, "watched:") {
			return true
		}
	}
	return false
}

// OnlyWatched reports whether all syncs of ref were requested by watches.
func (r Repo) OnlyWatched(ref events.Ref) bool {
	return r.fields["watched:"+ref.String()] != "" && r.fields["byhand:"+ref.String()] == ""
}

// Head returns the published commit of ref, or "".
func (r Repo) Head(ref events.Ref) string { return r.fields["head:"+ref.String()] }

// Default returns the ref that was last published under the plain name, or "" if that is unknown.
func (r Repo) Default() string { return r.fields[defaultField] }

const defaultField = "default"

// FieldsOf returns the sorted names of the fields that belong to ref.
func (r Repo) FieldsOf(ref events.Ref) []string {
	var names []string
	for name := range r.fields {
		kind, rest, _ := strings.Cut(name, ":")
		about, _, _ := strings.Cut(rest, ":") // a ref contains no colon
		switch kind {
		case "head", "given", "given_earlier", "repeat", "asked", "newest", "look", "watched", "byhand", "check", "missing":
			if about == ref.String() {
				names = append(names, name)
			}
		case defaultField:
			if r.fields[name] == ref.String() {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// CloneFields returns the sorted names of the fields that say what is on the volume, and what apps have received of it.
func (r Repo) CloneFields() []string {
	var names []string
	for name := range r.fields {
		if name == "synced" || name == defaultField || strings.HasPrefix(name, "head:") ||
			strings.HasPrefix(name, givenPrefix) || strings.HasPrefix(name, earlierPrefix) ||
			strings.HasPrefix(name, repeatPrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// MovedFields returns the fields to set at the new path after a move: all except those that belong to the old path, its
// remote or its changes. It omits the fields that the new path already has, which are those of there, but adds the
// refused credentials to its troubles.
func (r Repo) MovedFields(there Repo, to events.RepoPath, url string, fence uint64) map[string]string {
	fields := map[string]string{"repo": to.String(), "url": url}
	for name, value := range r.fields {
		kind, _, _ := strings.Cut(name, ":")
		switch kind {
		case "repo", "url", "fence", "tombstone", "moved", "asked", "newest", "look", leftOutField, TroubleField, cellField:
			// These belong to the old path, its remote or its changes.
		default:
			fields[name] = value
		}
	}
	for name := range there.fields {
		delete(fields, name)
	}
	if troubles := there.withRefusals(r); troubles != "" {
		fields[TroubleField] = troubles
	}
	fields["fence"] = strconv.FormatUint(fence, 10)
	return fields
}

// FenceFields returns the fields to set for every settled change.
func FenceFields(result events.Result) map[string]string {
	return map[string]string{"fence": strconv.FormatUint(result.Fence, 10)}
}

// SyncedFields returns the fields to set for a settled sync, whose commit is delivered to its app, and those to remove.
func (r Repo) SyncedFields(result events.Result, url string) (set map[string]string, drop []string) {
	set, drop = r.delivered(result)
	maps.Copy(set, map[string]string{
		"repo":   result.Repo.String(),
		"url":    url,
		"fence":  strconv.FormatUint(result.Fence, 10),
		"synced": result.Time.UTC().Format(time.RFC3339Nano),

		"head:" + result.Ref.String(): result.After,
	})
	if result.IsDefault() {
		set[defaultField] = result.Ref.String()
	}
	return set, drop
}

// RemovedFields returns the fields to keep after a settled removal, which clears all others.
func RemovedFields(result events.Result, entry string) map[string]string {
	return map[string]string{
		"repo":      result.Repo.String(),
		"fence":     strconv.FormatUint(result.Fence, 10),
		"tombstone": entry,
	}
}
