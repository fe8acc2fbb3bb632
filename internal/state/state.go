// Package state reads the state that Redis keeps of each repository between syncs, and defines the fields that the
// settle script writes. It also stores the workers' activity reports.
//
// The fields of an app go with its last watch, at the next poll: see [Repo.ForgetApps]. The state goes with the
// repository: see [Store.Forget].
//
// The state of a repository is a hash with these fields:
//
//	repo                path in its original case
//	url                 remote of the last sync
//	fence               fence of the lease under which the last change was settled
//	synced              time of the last settled sync, RFC 3339
//	answered            when the remote last answered a sync or a poll, RFC 3339
//	head:{ref}          published commit of ref
//	default             ref that was last published under the plain name; absent if that has gone and the ref stays
//	given:{ref}:{app}   "{commit} {tree} {commit} …": commit of ref last delivered to app, the name of its tree, and
//	                    at most 4 commits delivered before, newest first. Instead of a name: "-" if the app may have
//	                    missed it, "~{commit}" or "~" if it may have received that or more since, "." if the tree is
//	                    in the cell that the repository came from. A ref contains no colon
//	asked:{ref}:{cred}  "{entry} {ref} {commit} {url}": the remote's last answer for ref with that credential:
//	                    last entry of the stream before the request, resolved ref, commit, and remote
//	chain:{ref}         "-{entry} {commit}@{entry} …": commits that ref named, see [Repo.Chain]
//	awaited             announced commits that the remote does not show yet, as JSON: see [Awaited]; absent if none
//	watched:{ref}       "1" once a watch has requested a sync of ref
//	byhand:{ref}        "1" once a sync of ref was requested other than by a watch; byhand:{ref}:{app} for an app
//	tombstone           stream entry of the removal that deleted the clone
//	moved:{path}        "{entry} {remote}": the repository that was here has moved to path, where it has that
//	                    remote, by the move with that stream entry; empty if it has come back
//	check:{ref}         last check of ref's commit by the rules of its watches, as JSON: see [Check]
//	{extension}:{name}  field of an extension: see [Repo.ExtensionFields]
//	refused             refs whose commit is refused, separated by spaces; may list refs that are gone
//	missing:{ref}       what the published tree of ref lacks, as JSON: see [Missing]
//	missing             refs whose trees lack something, separated by spaces; may list refs that are gone
//	leftout             refs that watches select, but that the last poll has left out, as JSON: see [LeftOut]
//	trouble             last error of each scope that fails, as JSON: see [Trouble]; absent if none does
//	cell                the repository is not in this cell: see [CellMove]; absent if it is
//	from                the cell that it came from, and whether this one has published it: see [Repo.IsUnfetched];
//	                    absent if it came from none
package state

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	stored  string // the value of [TroubleField] in Redis, which [Repo.Forget] does not change
	watched bool   // only read where [Repo.Summary] needs it
}

// RepoOf returns the state with the given fields.
func RepoOf(fields map[string]string) Repo { return Repo{fields: fields, stored: fields[TroubleField]} }

// Load returns the state of repo, which is zero if there is none. More than about 8,000 fields are not read
// atomically: see [Store.read].
func (s *Store) Load(ctx context.Context, repo events.RepoPath) (Repo, error) {
	fields, err := s.read(ctx, repo, "")
	return RepoOf(fields), err
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

// answeredField is the field with the time of the remote's last answer.
const answeredField = "answered"

// Answered returns when the remote last answered a sync or a poll, or the zero time.
func (r Repo) Answered() time.Time {
	t, _ := time.Parse(time.RFC3339Nano, r.fields[answeredField])
	return t
}

// AnsweredFields returns the fields to set once the remote has answered.
func AnsweredFields(at time.Time) map[string]string {
	return map[string]string{answeredField: at.UTC().Format(time.RFC3339Nano)}
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

// RemoteRefFields returns the fields to set for a sync that has asked the remote for ref.
func RemoteRefFields(ref events.Ref, credential string, remote RemoteRef) map[string]string {
	value := remote.Until + " " + remote.Ref.String() + " " + remote.Commit + " " + remote.URL
	return map[string]string{askedField(ref, credential): value, askedField(remote.Ref, credential): value}
}

func askedField(ref events.Ref, credential string) string {
	return "asked:" + ref.String() + ":" + credential
}

// OriginFields returns the fields to set for a sync of ref, which record whether a watch requested it.
func OriginFields(change events.Change, ref events.Ref) map[string]string {
	if change.Watched {
		return map[string]string{"watched:" + ref.String(): "1"}
	}
	return map[string]string{byHand(ref.String(), ""): "1", byHand(ref.String(), change.App): "1"}
}

// byHand returns the field that says that a sync of ref was requested by hand, for an app, or "" for any.
func byHand(ref, app string) string { return strings.TrimSuffix("byhand:"+ref+":"+app, ":") }

// HasOrigin reports whether it is known who has requested ref.
func (r Repo) HasOrigin(ref events.Ref) bool {
	return r.fields["watched:"+ref.String()] != "" || r.fields[byHand(ref.String(), "")] != ""
}

// RecordWatched stores that a watch has requested ref before a sync publishes it, under the lease with the given fence.
// If a newer lease has been granted, it changes nothing and returns no error.
func (s *Store) RecordWatched(ctx context.Context, repo events.RepoPath, fence uint64, ref events.Ref) error {
	if err := s.setHeld(ctx, repo, fence, "watched:"+ref.String(), "1", ""); err != nil {
		return fmt.Errorf("store in the state of %s that %s is watched: %w", repo, ref, err)
	}
	return nil
}

// RepeatFields returns the fields to set so that ref is given again, whole, to the apps that match.
func (r Repo) RepeatFields(ref events.Ref, match func(app string) bool) map[string]string {
	fields := map[string]string{}
	for name, value := range r.fields {
		if app, ok := strings.CutPrefix(name, givenField("", ref)); ok && match(app) {
			fields[name] = value
		}
	}
	Repeat(fields)
	return fields
}

// FoundFields returns the fields to set for a ref that is published at a commit, but not watched. If nobody knows who
// has requested it, it was not a watch.
func (r Repo) FoundFields(ref events.Ref, commit string) map[string]string {
	fields := map[string]string{}
	if r.Head(ref) != commit {
		fields["head:"+ref.String()] = commit
	}
	if !r.HasOrigin(ref) {
		fields[byHand(ref.String(), "")] = "1"
	}
	return fields
}

// Watched reports whether a watch has ever requested a sync of the current clone.
func (r Repo) Watched() bool { return len(r.WatchedRefs()) > 0 }

// WatchedRefs returns the refs of which a watch has requested a sync. One that was never published has no head.
func (r Repo) WatchedRefs() (refs []string) {
	for name := range r.fields {
		if ref, ok := strings.CutPrefix(name, "watched:"); ok {
			refs = append(refs, ref)
		}
	}
	return refs
}

// OnlyWatched reports whether all syncs of ref were requested by watches.
func (r Repo) OnlyWatched(ref events.Ref) bool {
	return r.fields["watched:"+ref.String()] != "" && r.fields[byHand(ref.String(), "")] == ""
}

// Head returns the published commit of ref, or "".
func (r Repo) Head(ref events.Ref) string { return r.fields["head:"+ref.String()] }

// Default returns the ref that was last published under the plain name, or "" if that is unknown.
func (r Repo) Default() string { return r.fields[DefaultField] }

// DefaultField is the field with the ref that was last published under the plain name.
const DefaultField = "default"

// FieldsOf returns the sorted names of the fields that belong to ref.
func (r Repo) FieldsOf(ref events.Ref) []string {
	var names []string
	for name := range r.fields {
		kind, rest, _ := strings.Cut(name, ":")
		about, _, _ := strings.Cut(rest, ":") // a ref contains no colon
		switch kind {
		case "head", "given", "asked", "chain", "watched", "byhand", "check", "missing":
			if about == ref.String() {
				names = append(names, name)
			}
		case DefaultField:
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
		if name == "synced" || name == DefaultField || strings.HasPrefix(name, "head:") ||
			strings.HasPrefix(name, givenPrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// ForgetApps removes from a loaded state the fields of apps that watch nothing any more, and the answers of the remote
// to credentials that no watch names. It keeps those of refs that were also requested by hand: by that app or, of the
// answers, by anybody. It returns the names of the removed fields.
func (r Repo) ForgetApps(watching, credentials map[string]bool) (drop []string) {
	for name := range r.fields {
		kind, rest, _ := strings.Cut(name, ":")
		ref, of, _ := strings.Cut(rest, ":")
		ref = cmp.Or(ref, r.fields[DefaultField])
		gone := false
		switch kind {
		case "given":
			gone = of != "" && !watching[of] && r.fields[byHand(ref, of)] == ""
		case "asked":
			gone = !credentials[of] && r.fields["watched:"+ref] != "" && r.fields[byHand(ref, "")] == ""
		}
		if gone {
			drop = append(drop, name)
			delete(r.fields, name)
		}
	}
	return drop
}

// MovedFields returns the fields to set at the new path after a move: all except those that belong to the old path, its
// remote or its changes. It omits the fields that the new path already has, which are those of there, but adds the
// refused credentials to its troubles.
func (r Repo) MovedFields(there Repo, to events.RepoPath, url string, fence uint64) map[string]string {
	fields := map[string]string{"repo": to.String(), "url": url}
	for name, value := range r.fields {
		kind, _, _ := strings.Cut(name, ":")
		switch kind {
		case "repo", "url", "fence", "tombstone", "moved", "asked", "chain", awaitedField, leftOutField, TroubleField, cellField,
			fromField, answeredField:
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

// SyncedFields returns the fields to set for a settled sync, whose tree is delivered to its app.
func (r Repo) SyncedFields(result events.Result, url string) map[string]string {
	set := r.delivered(result)
	maps.Copy(set, map[string]string{
		"repo":   result.Repo.String(),
		"url":    url,
		"fence":  strconv.FormatUint(result.Fence, 10),
		"synced": result.Time.UTC().Format(time.RFC3339Nano),

		"head:" + result.Ref.String(): result.After,
	})
	if result.IsDefault() {
		set[DefaultField] = result.Ref.String()
	}
	return set
}

// RemovedFields returns the fields to keep after a settled removal, which clears all others.
func RemovedFields(result events.Result, entry string) map[string]string {
	return map[string]string{
		"repo":      result.Repo.String(),
		"fence":     strconv.FormatUint(result.Fence, 10),
		"tombstone": entry,
	}
}
