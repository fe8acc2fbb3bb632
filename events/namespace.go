package events

import (
	"fmt"
	"regexp"
)

// DefaultNamespace is the [Namespace] of a deployment that does not configure one.
const DefaultNamespace Namespace = "lockstep:{0}:"

// WorkersGroup is the consumer group of workers on the stream of changes.
const WorkersGroup = "workers"

// Namespace is the prefix of all Redis keys of one deployment. It contains a hash tag, so that on Redis Cluster
// all keys share one slot and one script can update them atomically.
type Namespace string

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9._:-]*\{[A-Za-z0-9._-]+\}[A-Za-z0-9._:-]*$`)

// ParseNamespace returns an error unless s contains exactly one non-empty hash tag, as in "lockstep:{0}:".
func ParseNamespace(s string) (Namespace, error) {
	if len(s) > 128 || !namespacePattern.MatchString(s) {
		return "", fmt.Errorf("prefix %.140q: want at most 128 letters, digits and ._:- around one {hash "+
			"tag}, as in %q", s, DefaultNamespace)
	}
	return Namespace(s), nil
}

// Changes is the stream of changes.
func (n Namespace) Changes() string { return string(n) + "changes" }

// Results is the stream of results.
func (n Namespace) Results() string { return string(n) + "results" }

// Dead is the stream of dead letters.
func (n Namespace) Dead() string { return string(n) + "dead" }

// Repo is the hash with the state of a repository.
func (n Namespace) Repo(p RepoPath) string { return string(n) + "repo:" + p.Key() }

// Failing is the hash of the repositories whose state has troubles, with the time of the newest, in ms.
func (n Namespace) Failing() string { return string(n) + "failing" }

// Views is the hash with the state of a repository's views.
func (n Namespace) Views(p RepoPath) string { return string(n) + "views:" + p.Key() }

// Locks is the prefix of the lock keys; a repository's [RepoPath.Key] follows it.
func (n Namespace) Locks() string { return string(n) + "lock:" }

// Volume is the key with the ID of the volume that this deployment publishes to.
func (n Namespace) Volume() string { return string(n) + "volume" }

// Watches is the prefix of the registry's keys.
func (n Namespace) Watches() string { return string(n) + "watch:" }

// Forwarded is the prefix of the marks of changes that other cells have forwarded to this one.
func (n Namespace) Forwarded() string { return string(n) + "forwarded:" }

// Poll is the sorted set of polled repositories, scored by the time of the next poll.
func (n Namespace) Poll() string { return string(n) + "poll" }

// Deliveries is the prefix of the keys that deduplicate webhook deliveries; the ID of a change follows it.
func (n Namespace) Deliveries() string { return string(n) + "deliveries:" }

// Notifications is the stream of notifications to redeliver, and the prefix of the keys of undelivered ones.
func (n Namespace) Notifications() string { return string(n) + "notify" }

// Reconcile is the lock of the process that compares registry, state and volume. It also records the last run.
func (n Namespace) Reconcile() string { return string(n) + "reconcile" }

// Working is the hash of the jobs that workers are handling.
func (n Namespace) Working() string { return string(n) + "working" }

// GC is the lock of the worker that collects garbage. It also records the last run.
func (n Namespace) GC() string { return string(n) + "gc" }

// Departing is the sorted set of the repositories whose move to another cell has begun, scored by when it is to be
// completed, in ms.
func (n Namespace) Departing() string { return string(n) + "departing" }

// Departed is the sorted set of the repositories that were moved to other cells and whose files are still
// here, scored by when the next step is due, in ms.
func (n Namespace) Departed() string { return string(n) + "departed" }

// Rebalance is the lock of the worker that moves repositories to other cells.
func (n Namespace) Rebalance() string { return string(n) + "rebalance" }

// Tokens is the hash of the tokens of apps, and the prefix of the times of their last use.
func (n Namespace) Tokens() string { return string(n) + "tokens" }
