package events

import (
	"fmt"
	"regexp"
)

// DefaultNamespace is the [Namespace] of a deployment that names none.
const DefaultNamespace Namespace = "lockstep:{0}:"

// WorkersGroup is the consumer group of workers on the stream of changes.
const WorkersGroup = "workers"

// Namespace is the prefix of all Redis keys of one deployment. It contains a hash tag, so that on
// Redis Cluster all of them live in one slot and one script can change them together.
type Namespace string

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9._:-]*\{[A-Za-z0-9._-]+\}[A-Za-z0-9._:-]*$`)

// ParseNamespace checks that s has exactly one non-empty hash tag, as in "lockstep:{0}:".
func ParseNamespace(s string) (Namespace, error) {
	if len(s) > 128 || !namespacePattern.MatchString(s) {
		return "", fmt.Errorf("prefix %.140q: want at most 128 letters, digits and ._:- around one {hash tag}, as in %q", s, DefaultNamespace)
	}
	return Namespace(s), nil
}

// Changes is the stream of changes asked for.
func (n Namespace) Changes() string { return string(n) + "changes" }

// Results is the stream of results.
func (n Namespace) Results() string { return string(n) + "results" }

// Dead is the stream of entries that were given up, with the reason.
func (n Namespace) Dead() string { return string(n) + "dead" }

// Repo is the hash that holds what is known of a repository.
func (n Namespace) Repo(p RepoPath) string { return string(n) + "repo:" + p.Key() }

// Locks is the prefix of the lock keys; a repository's lock follows with its [RepoPath.Key].
func (n Namespace) Locks() string { return string(n) + "lock:" }

// Volume holds the id of the volume that this deployment publishes to.
func (n Namespace) Volume() string { return string(n) + "volume" }

// Watches is the prefix of the registry's keys: the watches of a repository are at "of:" and its
// [RepoPath.Key].
func (n Namespace) Watches() string { return string(n) + "watch:" }

// Poll is the sorted set of the repositories that are polled, by the moment of the next.
func (n Namespace) Poll() string { return string(n) + "poll" }

// Deliveries is the prefix of the ledgers of webhook deliveries, one for each source.
func (n Namespace) Deliveries() string { return string(n) + "deliveries:" }

// Notifications is the stream of notifications that are to be sent again, and the prefix of the keys of
// those to be sent.
func (n Namespace) Notifications() string { return string(n) + "notify" }

// Reconcile is held by the process that compares registry, state and volume, or was the last to.
func (n Namespace) Reconcile() string { return string(n) + "reconcile" }

// Working is the hash that says what each worker works on now.
func (n Namespace) Working() string { return string(n) + "working" }

// Patrol is held by the worker that looks after repositories which nobody syncs, or was the last to.
func (n Namespace) Patrol() string { return string(n) + "patrol" }
