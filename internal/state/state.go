// Package state reads what Redis remembers of a repository between syncs, and names the fields in
// which the settle script writes it down.
//
//	repo                spelled path
//	url                 remote last synced from
//	fence               of the lease under which the last change was settled
//	synced              when that was, RFC 3339
//	head:{ref}          commit published for ref
//	given:{ref}:{app}   commit that app was last given for ref; a ref has no colon in it
//	asked:{ref}:{cred}  "{entry} {ref} {commit}": the last entry of the stream just before the remote was asked
//	                    with that credential where ref stands, the ref resolved, and the answer
//	newest:{ref}        newest entry known that announces a commit for ref
//	look:{ref}          "{entry} {n}": that entry's commit was not there yet, n times
//	tombstone           stream entry of the removal that deleted the clone
package state

import (
	"context"
	"fmt"
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

// Load returns what is known of repo.
func (s *Store) Load(ctx context.Context, repo events.RepoPath) (Repo, error) {
	fields, err := s.redis.HGetAll(ctx, s.namespace.Repo(repo)).Result()
	if err != nil {
		return Repo{}, fmt.Errorf("load the state of %s: %w", repo, err)
	}
	return Repo{fields}, nil
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
// the entry asks is past.
func (r Repo) Buried(entry string) bool {
	tombstone := r.fields["tombstone"]
	return tombstone != "" && (entry == tombstone || events.EntryAfter(tombstone, entry))
}

// Asked is what the remote once said.
type Asked struct {
	Until  string     // id of the last entry of the stream just before it was asked
	Ref    events.Ref // the ref, resolved
	Commit string     // where it stood
}

// Asked returns what the remote at url last said of ref, as asked for in a change, to that
// credential. It is false when it was never asked, or another remote was.
func (r Repo) Asked(url string, ref events.Ref, credential string) (Asked, bool) {
	parts := strings.Fields(r.fields[askedField(ref, credential)])
	if len(parts) != 3 || r.fields["url"] != url {
		return Asked{}, false
	}
	resolved, err := events.ParseRef(parts[1])
	return Asked{Until: parts[0], Ref: resolved, Commit: parts[2]}, err == nil
}

// Newest is the newest entry known that announces a commit for ref, or "".
func (r Repo) Newest(ref events.Ref) string { return r.fields[newestField(ref)] }

// Looks is how often the commit that an entry announces for ref was found not to be there yet.
func (r Repo) Looks(ref events.Ref, entry string) int {
	id, n, _ := strings.Cut(r.fields[lookField(ref)], " ")
	if id != entry {
		return 0
	}
	looks, _ := strconv.Atoi(n)
	return looks
}

// SetLooks remembers that number.
func (s *Store) SetLooks(ctx context.Context, repo events.RepoPath, ref events.Ref, entry string, looks int) error {
	if err := s.redis.HSet(ctx, s.namespace.Repo(repo), lookField(ref), entry+" "+strconv.Itoa(looks)).Err(); err != nil {
		return fmt.Errorf("note in the state of %s that the remote is behind: %w", repo, err)
	}
	return nil
}

// AskedFields are the fields that a settled sync sets which has asked the remote for ref.
func AskedFields(ref events.Ref, credential string, a Asked) map[string]string {
	value := a.Until + " " + a.Ref.String() + " " + a.Commit
	return map[string]string{askedField(ref, credential): value, askedField(a.Ref, credential): value}
}

// NewestFields are the fields that name the newest entry that announces a commit for ref.
func NewestFields(ref events.Ref, entry string) map[string]string {
	return map[string]string{newestField(ref): entry}
}

func askedField(ref events.Ref, credential string) string {
	return "asked:" + ref.String() + ":" + credential
}

func newestField(ref events.Ref) string { return "newest:" + ref.String() }

func lookField(ref events.Ref) string { return "look:" + ref.String() }

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
