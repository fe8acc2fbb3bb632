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
	"lockstep/internal/cache"
)

// Registry stores watches in Redis. It is safe for concurrent use by any number of processes.
//
// Errors that do not wrap a Redis error are of type [events.Error]. Conflicts, such as two remotes at one
// path, have the class [events.ClassConflict] and are returned before anything changes.
type Registry struct {
	redis     redis.UniversalClient
	namespace events.Namespace
	large     *cache.Recent[Set] // by repository; those whose version is current are valid
}

// Large sets are cached: each sync and each post reads the watches of its repository, and thousands of views are
// megabytes that take 50 ms to decode and compile.
const (
	largeSet     = 16 << 10 // bytes of documents
	maxLargeSets = 8
)

// NewRegistry returns a Registry. The client must not retry commands by itself.
func NewRegistry(client redis.UniversalClient, namespace events.Namespace) *Registry {
	return &Registry{redis: client, namespace: namespace, large: cache.NewRecent[Set](maxLargeSets)}
}

// Set is a consistent snapshot of all watches of one repository.
type Set struct {
	Version string  // changes with every write; "" if there are no watches
	Watches []Watch // by app, then ref
}

// RemoteWatches is all watches of repositories whose remotes have the same [RemoteKey], at whatever paths.
type RemoteWatches struct {
	Version string  // changes with every write to one of their sets; "" if there are no watches
	Watches []Watch // by repository, then app, then ref
}

const maxWatches = 1000

func (r *Registry) ofPrefix() string { return r.namespace.Watches() + "of:" }

func (r *Registry) of(repo events.RepoPath) string { return r.ofPrefix() + repo.Key() }

func (r *Registry) moved(from events.RepoPath) string {
	return r.namespace.Watches() + "moved:" + from.Key()
}

func (r *Registry) at(remoteKey string) string { return r.namespace.Watches() + "at:" + remoteKey }

func (r *Registry) index() string { return r.namespace.Watches() + "index" }

// Of returns the watches of a repository.
func (r *Registry) Of(ctx context.Context, repo events.RepoPath) (Set, error) {
	if set, ok := r.large.Get(repo.Key()); ok {
		version, err := r.redis.HGet(ctx, r.of(repo), "version").Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return Set{}, fmt.Errorf("read the watches of %s: %w", repo, err)
		}
		if version == set.Version {
			set.Watches = slices.Clone(set.Watches)
			return set, nil
		}
	}
	kept, err := r.load(ctx, repo)
	if err != nil {
		return Set{}, err
	}
	watches, err := kept.watches()
	set := Set{Version: kept.version, Watches: watches}
	if err != nil {
		return set, err
	}
	r.large.Put(repo.Key(), Set{set.Version, slices.Clone(watches)}, min(1, kept.size()/largeSet))
	return set, nil
}

// ByRemote returns the watches of all repositories whose remotes have the [RemoteKey] of url. They are not
// necessarily the [SameRemote]. The version is read first, then the sets one by one. If one changes
// meanwhile, the version is outdated, and [Registry.Accept] returns [Stale] for changes computed from them.
func (r *Registry) ByRemote(ctx context.Context, url string) (RemoteWatches, error) {
	remote := RemoteKey(url)
	fields, err := r.redis.HGetAll(ctx, r.at(remote)).Result()
	if err != nil {
		return RemoteWatches{}, fmt.Errorf("find the watches of %s: %w", remote, err)
	}
	result := RemoteWatches{Version: fields["version"]}
	delete(fields, "version")
	found, err := r.loadAll(ctx, slices.Sorted(maps.Keys(fields)))
	if err != nil {
		return RemoteWatches{}, fmt.Errorf("find the watches of %s: %w", remote, err)
	}
	for _, kept := range found {
		watches, err := kept.watches()
		if err != nil {
			return RemoteWatches{}, err
		}
		result.Watches = append(result.Watches, watches...)
	}
	return result, nil
}

// Keys returns the keys of an app's watches of a repository, by ref, including watches that Of cannot decode.
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

// Put adds watches, replacing those with the same [Key], and returns how many changed. In one step, it writes
// the watches of one repository and queues the syncs of new ones, or one poll of the repository if others
// have changed or most of its watches are new. All watches are validated before the first write. If a write
// fails, earlier repositories stay written; calling Put again is safe. Put returns an error for a path above
// or below another watched path, two remotes at one path, and more than 1,000 watches of a repository.
func (r *Registry) Put(ctx context.Context, watches ...Watch) (changed int, err error) {
	changed, _, err = r.Apply(ctx, watches, nil)
	return changed, err
}

// Add puts an automatic watch like [Registry.Put], but does nothing if its path is already watched. It returns an
// error if the path is watched at another remote.
func (r *Registry) Add(ctx context.Context, w Watch) error {
	edits, err := editsOf([]Watch{w}, nil)
	if err != nil {
		return err
	}
	return r.edit(ctx, edits[0].repo, true, func(docs map[string]string) error {
		if len(docs) == 0 {
			maps.Copy(docs, edits[0].put)
		}
		return edits[0].check(docs)
	})
}

// Remove removes watches and returns how many existed. In the same step it queues a poll of the repository
// or, after its last watch, the removal of its clone.
func (r *Registry) Remove(ctx context.Context, keys ...Key) (removed int, err error) {
	_, removed, err = r.Apply(ctx, nil, keys)
	return removed, err
}

// Apply puts and removes watches in one step per repository, so that replacing the only watch of a repository does not
// remove its clone. Repositories whose watches are only removed come first.
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

// edit is the part of an Apply that concerns one repository.
type edit struct {
	repo   events.RepoPath
	put    map[string]string // documents by field
	remove []Key
	first  Watch // first watch to put
}

// editsOf groups the work by repository. It returns an error for an invalid watch and for conflicting watches.
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
			return nil, events.Errorf(events.Malformed, events.ClassConfig, "watch: %w", err)
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

// check returns an error if the resulting set would be invalid.
func (e *edit) check(docs map[string]string) error {
	if len(e.put) == 0 {
		return nil
	}
	watches, err := contents{repo: e.repo, docs: docs}.watches()
	if err != nil {
		return err
	}
	if err := checkSameRemote(e.first, watches); err != nil {
		return err
	}
	return checkLimits(e.repo, watches)
}

// field returns the field of a watch in its repository's hash. Only such fields contain a space.
func (k Key) field() string { return k.App + " " + k.Ref.String() }

// contents is the stored form of the watches of one repository.
type contents struct {
	repo    events.RepoPath
	version string
	at      string            // the key of its remote
	spelled string            // as first watched
	docs    map[string]string // watches, by field
}

func (r *Registry) load(ctx context.Context, repo events.RepoPath) (contents, error) {
	fields, err := r.redis.HGetAll(ctx, r.of(repo)).Result()
	if err != nil {
		return contents{}, fmt.Errorf("read the watches of %s: %w", repo, err)
	}
	return newContents(repo, fields), nil
}

// loadAll reads the contents of the repositories with these keys, in order.
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
			return nil, fmt.Errorf("invalid repository %.100q in an index: %w", key, err)
		}
		fields, err := replies[i].Result()
		if err != nil {
			return nil, fmt.Errorf("read the watches of %s: %w", repo, err)
		}
		found[i] = newContents(repo, fields)
	}
	return found, nil
}

// newContents decodes the fields of the hash. It takes ownership of the map.
func newContents(repo events.RepoPath, fields map[string]string) contents {
	kept := contents{
		repo: repo, version: fields["version"], at: fields["at"], spelled: cmp.Or(fields["repo"], repo.String()),
	}
	maps.DeleteFunc(fields, func(name, _ string) bool { return !strings.Contains(name, " ") })
	kept.docs = fields
	return kept
}

// size returns the bytes in the documents.
func (c contents) size() (n int) {
	for _, doc := range c.docs {
		n += len(doc)
	}
	return n
}

var errUnreadable = errors.New("cannot be decoded: a newer version may have written it, which this process has to be " +
	"upgraded to; otherwise remove it with lockstep watch rm and add it again")

// watches decodes all watches or returns an error, because skipping one could remove a watched clone.
func (c contents) watches() ([]Watch, error) {
	watches := make([]Watch, 0, len(c.docs))
	for field, doc := range c.docs {
		w, err := parse([]byte(doc))
		if err != nil || !w.Repo.Equal(c.repo) || w.Key().field() != field {
			app, ref, _ := strings.Cut(field, " ")
			return nil, events.Errorf(events.Retryable, events.ClassConfig, "watch of %s by app %.100q, ref %.200q: %w",
				c.repo, app, ref, errUnreadable)
		}
		watches = append(watches, w)
	}
	slices.SortFunc(watches, byAppAndRef)
	return watches, nil
}

func byAppAndRef(a, b Watch) int {
	return cmp.Or(strings.Compare(a.App, b.App), strings.Compare(a.Ref.text, b.Ref.text))
}
