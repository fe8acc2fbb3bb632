// Package state reads what Redis remembers of a repository between syncs, and names the fields in
// which the settle script writes it down.
//
//	repo                spelled path
//	url                 remote last synced from
//	fence               of the lease under which the last change was settled
//	synced              when that was, RFC 3339
//	head:{ref}          commit published for ref
//	given:{ref}:{app}   commit that app was last given for ref; a ref has no colon in it
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
	return tombstone != "" && (entry == tombstone || After(tombstone, entry))
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

// After reports whether stream entry id a was generated after b. An id that does not parse is after
// none.
func After(a, b string) bool {
	ams, aseq, aok := parseID(a)
	bms, bseq, bok := parseID(b)
	if !aok || !bok {
		return false
	}
	return ams > bms || ams == bms && aseq > bseq
}

func parseID(id string) (ms, seq uint64, ok bool) {
	head, tail, found := strings.Cut(id, "-")
	ms, err := strconv.ParseUint(head, 10, 64)
	if err != nil || !found {
		return 0, 0, false
	}
	seq, err = strconv.ParseUint(tail, 10, 64)
	return ms, seq, err == nil
}
