package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Registry is who watches what, in Redis. It is safe for concurrent use by any number of processes.
//
// An error that wraps none of Redis' is an [events.Error]: what cannot be, as two remotes at one path, has the
// class [events.ClassConflict], and was refused before anything changed.
type Registry struct {
	redis     redis.UniversalClient
	namespace events.Namespace
}

// NewRegistry makes a Registry on a client that does not retry by itself.
func NewRegistry(client redis.UniversalClient, namespace events.Namespace) *Registry {
	return &Registry{redis: client, namespace: namespace}
}

// Set is all watches of one repository, as they were at one moment.
type Set struct {
	Version string  // another whenever the set is; "" when nobody watches
	Watches []Watch // by app, then ref
}

// Placed is all watches of the repositories whose remotes have one [Place], at whatever paths they are kept.
type Placed struct {
	Version string  // another whenever one of their sets is, or there is another set; "" when nobody watches
	Watches []Watch // by repository, then app, then ref
}

// mostWatches is how many watches one repository may have.
const mostWatches = 1000

func (r *Registry) ofPrefix() string { return r.namespace.Watches() + "of:" }

func (r *Registry) of(repo events.RepoPath) string { return r.ofPrefix() + repo.Key() }

func (r *Registry) at(place string) string { return r.namespace.Watches() + "at:" + place }

func (r *Registry) index() string { return r.namespace.Watches() + "index" }

// Of returns the watches of a repository.
func (r *Registry) Of(ctx context.Context, repo events.RepoPath) (Set, error) {
	kept, err := r.load(ctx, repo)
	if err != nil {
		return Set{}, err
	}
	watches, err := kept.watches()
	return Set{Version: kept.version, Watches: watches}, err
}

// At returns the watches of all repositories whose remotes have the [Place] of the one at url. Not all of them need
// be of the [SameRemote]. They are read one after the other, after the version: if any is changed meanwhile, the
// version is not current any more, and [Registry.Accept] finds what was made of them stale.
func (r *Registry) At(ctx context.Context, url string) (Placed, error) {
	place := Place(url)
	fields, err := r.redis.HGetAll(ctx, r.at(place)).Result()
	if err != nil {
		return Placed{}, fmt.Errorf("find the watches of %s: %w", place, err)
	}
	placed := Placed{Version: fields["version"]}
	delete(fields, "version")
	found, err := r.loadAll(ctx, slices.Sorted(maps.Keys(fields)))
	if err != nil {
		return Placed{}, fmt.Errorf("find the watches of %s: %w", place, err)
	}
	for _, kept := range found {
		watches, err := kept.watches()
		if err != nil {
			return Placed{}, err
		}
		placed.Watches = append(placed.Watches, watches...)
	}
	return placed, nil
}

// Keys returns what an app watches of a repository, by ref; watches too that Of cannot read.
func (r *Registry) Keys(ctx context.Context, repo events.RepoPath, app string) ([]Key, error) {
	kept, err := r.load(ctx, repo)
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, field := range slices.Sorted(maps.Keys(kept.docs)) {
		if ref, ok := strings.CutPrefix(field, app+" "); ok {
			keys = append(keys, Key{App: app, Repo: repo, Ref: Selector{ref}})
		}
	}
	return keys, nil
}

// Put adds watches, or puts them in the place of those with the same [Key], and returns how many were not
// the same before. The watches of one repository are one step, in which a look at its remote is asked for too. All are
// checked before the first is written; an error of a later repository leaves the earlier ones written, and
// calling again does no harm. It refuses a path that lies above or below one that is watched, two remotes at one
// path, and more than 1,000 watches of a repository.
func (r *Registry) Put(ctx context.Context, watches ...Watch) (changed int, err error) {
	changed, _, err = r.Apply(ctx, watches, nil)
	return changed, err
}

// Add puts a watch that nobody has asked for, as [Registry.Put] does, unless its path is watched already: then
// nothing changes, and it is refused if that is at another remote.
func (r *Registry) Add(ctx context.Context, w Watch) error {
	w, err := New(w)
	if err != nil {
		return events.Errorf(events.Permanent, events.ClassMalformed, "watch: %w", err)
	}
	doc, err := w.document()
	if err != nil {
		return err
	}
	return r.edit(ctx, w.Repo, true, func(docs map[string]string) error {
		if len(docs) == 0 {
			docs[w.Key().field()] = doc
			return nil
		}
		watches, err := contents{repo: w.Repo, docs: docs}.watches()
		return cmp.Or(err, oneRemote(w, watches))
	})
}

// Remove removes watches and returns how many there were. With the last watch of a repository the removal of
// its clone is asked for in the same step; else a look at its remote is.
func (r *Registry) Remove(ctx context.Context, keys ...Key) (removed int, err error) {
	_, removed, err = r.Apply(ctx, nil, keys)
	return removed, err
}

// Apply is Put and Remove with one step for each repository, so that one whose only watch is replaced by
// another is not removed. Repositories of which watches are only removed come first.
func (r *Registry) Apply(ctx context.Context, put []Watch, remove []Key) (changed, removed int, err error) {
	edits, err := editsOf(put, remove)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range edits {
		var nput, nremoved int
		err := r.edit(ctx, e.repo, true, func(docs map[string]string) error {
			nput, nremoved = 0, 0
			for _, key := range e.remove {
				if _, ok := docs[key.field()]; ok {
					nremoved++
				}
				delete(docs, key.field())
			}
			for field, doc := range e.put {
				if docs[field] != doc {
					nput++
				}
				docs[field] = doc
			}
			return e.check(docs)
		})
		if err != nil {
			return changed, removed, err
		}
		changed, removed = changed+nput, removed+nremoved
	}
	return changed, removed, nil
}

// edit is what Apply does to one repository.
type edit struct {
	repo   events.RepoPath
	put    map[string]string // documents by field
	remove []Key
	first  Watch // of those put
}

// editsOf sorts what is to be done by repository, and refuses a watch that is unsound and watches that
// exclude each other.
func editsOf(put []Watch, remove []Key) ([]*edit, error) {
	byRepo := map[string]*edit{}
	of := func(repo events.RepoPath) *edit {
		if byRepo[repo.Key()] == nil {
			byRepo[repo.Key()] = &edit{repo: repo, put: map[string]string{}}
		}
		return byRepo[repo.Key()]
	}
	for _, w := range put {
		w, err := New(w)
		if err != nil {
			return nil, events.Errorf(events.Permanent, events.ClassMalformed, "watch: %w", err)
		}
		doc, err := w.document()
		if err != nil {
			return nil, err
		}
		e := of(w.Repo)
		if len(e.put) == 0 {
			e.repo, e.first = w.Repo, w
		} else if events.CanonicalRemote(e.first.URL) != events.CanonicalRemote(w.URL) {
			return nil, twoRemotes(w, e.first)
		}
		e.put[w.Key().field()] = doc
	}
	for _, key := range remove {
		e := of(key.Repo)
		e.remove = append(e.remove, key)
	}
	return slices.SortedFunc(maps.Values(byRepo), func(a, b *edit) int {
		return cmp.Or(cmp.Compare(min(len(a.put), 1), min(len(b.put), 1)), cmp.Compare(a.repo.Key(), b.repo.Key()))
	}), nil
}

// check refuses what is put when the set would be none.
func (e *edit) check(docs map[string]string) error {
	if len(e.put) == 0 {
		return nil
	}
	watches, err := contents{repo: e.repo, docs: docs}.watches()
	if err != nil {
		return err
	}
	return cmp.Or(oneRemote(e.first, watches), tooMany(e.repo, len(watches)))
}

// field is where a watch stands in its repository's hash. An app's name has no space in it, and no other
// field has one.
func (k Key) field() string { return k.App + " " + k.Ref.String() }

// contents is what is kept of one repository.
type contents struct {
	repo    events.RepoPath
	version string
	at      string            // the place of its remote
	spelled string            // as it was first watched
	docs    map[string]string // watches, by field
}

func (r *Registry) load(ctx context.Context, repo events.RepoPath) (contents, error) {
	fields, err := r.redis.HGetAll(ctx, r.of(repo)).Result()
	if err != nil {
		return contents{}, fmt.Errorf("read the watches of %s: %w", repo, err)
	}
	return newContents(repo, fields), nil
}

// loadAll reads what is kept of each of the repositories with these keys, one after the other.
func (r *Registry) loadAll(ctx context.Context, keys []string) ([]contents, error) {
	replies := make([]*redis.MapStringStringCmd, len(keys))
	_, _ = r.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range keys {
			replies[i] = pipe.HGetAll(ctx, r.ofPrefix()+key)
		}
		return nil // each reply has its own error
	})
	found := make([]contents, len(keys))
	for i, key := range keys {
		repo, err := events.ParseRepoPath(key)
		if err != nil {
			return nil, fmt.Errorf("an index has %.100q: %w", key, err)
		}
		fields, err := replies[i].Result()
		if err != nil {
			return nil, fmt.Errorf("read the watches of %s: %w", repo, err)
		}
		found[i] = newContents(repo, fields)
	}
	return found, nil
}

// newContents takes the hash's fields, and the map.
func newContents(repo events.RepoPath, fields map[string]string) contents {
	kept := contents{repo: repo, version: fields["version"], at: fields["at"], spelled: cmp.Or(fields["repo"], repo.String())}
	maps.DeleteFunc(fields, func(name, _ string) bool { return !strings.Contains(name, " ") })
	kept.docs = fields
	return kept
}

var errUnreadable = errors.New("it cannot be read; remove it with lockstep watch rm, and add it anew")

// watches parses all of them, or none: whoever takes a watch that it cannot read for none may remove
// what is watched.
func (c contents) watches() ([]Watch, error) {
	watches := make([]Watch, 0, len(c.docs))
	for field, doc := range c.docs {
		w, err := parse([]byte(doc))
		if err != nil || !w.Repo.Equal(c.repo) || w.Key().field() != field {
			app, ref, _ := strings.Cut(field, " ")
			return nil, events.Errorf(events.Retryable, events.ClassConfig, "watch of %s by app %.100q, ref %.200q: %w", c.repo, app, ref, errUnreadable)
		}
		watches = append(watches, w)
	}
	slices.SortFunc(watches, byAppAndRef)
	return watches, nil
}

func byAppAndRef(a, b Watch) int {
	return cmp.Or(strings.Compare(a.App, b.App), strings.Compare(a.Ref.text, b.Ref.text))
}
