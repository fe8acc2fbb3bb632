package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// Volume reads the published trees. [volume.Volume] implements it.
type Volume interface {
	Repos() iter.Seq2[events.RepoPath, error]
	Published(repo events.RepoPath) (volume.Published, bool, error)
}

// Kind is the kind of a [Finding].
type Kind string

// The kinds.
const (
	NeverSynced    Kind = "never_synced"    // watched, but its app never received a tree
	Drift          Kind = "drift"           // watches, state and volume differ
	Missing        Kind = "missing"         // known, but not on the volume
	Orphan         Kind = "orphan"          // on the volume, but no longer watched
	UnwatchedClone Kind = "unwatched_clone" // on the volume, but never watched
)

// Kinds lists all kinds.
var Kinds = []Kind{NeverSynced, Drift, Missing, Orphan, UnwatchedClone}

// Finding is an inconsistency.
type Finding struct {
	Kind   Kind            `json:"kind"`
	Repo   events.RepoPath `json:"repo"`
	Detail string          `json:"detail"`
	// change queued to repair it, due or removed; empty if it is only reported
	Asked string `json:"asked,omitempty"`
}

// Report is the result of a reconciliation.
type Report struct {
	Watched  int       `json:"watched"` // repositories
	Clones   int       `json:"clones"`
	Busy     int       `json:"busy"` // skipped
	Findings []Finding `json:"findings"`
}

// Reconciler compares the registry, the state in Redis and the volume.
type Reconciler struct {
	Registry *watch.Registry
	States   *state.Store
	Volume   Volume
	Locks    *locking.Inspector
	Publish  func(ctx context.Context, change events.Change) error
	Source   string // of changes, such as "/lockstep/worker/w1"
	Prune    bool   // also remove clones that were never watched
	DryRun   bool   // only report
	Poll     bool   // poll each watched repository regardless of the findings
	Log      *slog.Logger
}

// Run checks everything once. It stops with an error if Redis or the volume cannot be read.
func (r Reconciler) Run(ctx context.Context) (Report, error) {
	report := Report{Findings: []Finding{}}
	if err := r.compare(ctx, &report); err != nil {
		return report, fmt.Errorf("reconcile: %w", err)
	}
	return report, nil
}

func (r Reconciler) compare(ctx context.Context, report *Report) error {
	watched, err := r.watched(ctx, report)
	if err != nil {
		return err
	}
	if err := r.clones(ctx, watched, report); err != nil {
		return err
	}
	return r.known(ctx, watched, report)
}

// watched checks each watched repository and returns their keys.
func (r Reconciler) watched(ctx context.Context, report *Report) (map[string]bool, error) {
	watched := map[string]bool{}
	for repo, err := range r.Registry.Repos(ctx) {
		if err != nil {
			return nil, err
		}
		watched[repo.Key()] = true
		report.Watched++
		found, busy, err := r.inspect(ctx, repo)
		if isRegistryFault(err) {
			r.Log.WarnContext(ctx, "repository skipped, its watches cannot be decoded", "repo", repo.String(), "error", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if busy {
			report.Busy++
		}
		if found.Kind == "" && !r.Poll {
			continue
		}
		if err := r.publish(ctx, events.Change{Type: events.ChangeDue, Repo: repo, OnBusy: events.BusySkip}); err != nil {
			return nil, err
		}
		if found.Kind != "" {
			found.Asked = "due"
			r.add(ctx, report, found)
		}
	}
	return watched, nil
}

// isRegistryFault reports whether the content of the registry is invalid, as opposed to an error of Redis.
func isRegistryFault(err error) bool {
	_, ok := errors.AsType[*events.Error](err)
	return ok
}

// inspect checks a watched repository. It reads everything before it checks whether the repository is busy: a
// worker that changed anything meanwhile still holds the lease, or has settled with a newer fence than the
// one read.
func (r Reconciler) inspect(ctx context.Context, repo events.RepoPath) (found Finding, busy bool, err error) {
	set, err := r.Registry.Of(ctx, repo)
	if err != nil {
		return found, false, err
	}
	known, err := r.States.Load(ctx, repo)
	if err != nil {
		return found, false, err
	}
	published, there, err := r.Volume.Published(repo)
	if err != nil {
		return Finding{Kind: Drift, Repo: repo, Detail: err.Error()}, false, nil
	}
	found.Repo = repo
	switch given := givenTo(known); {
	case !there && !known.Synced().IsZero():
		found.Kind, found.Detail = Missing, "synced before, but not on the volume"
	default:
		for _, w := range set.Watches {
			if !given[w.App] {
				found.Kind, found.Detail = NeverSynced, w.App+" never received a tree"
			}
		}
		if detail := cmp.Or(drift(published.Commits, known.Heads()), unwanted(published, known, set.Watches)); detail != "" {
			found.Kind, found.Detail = Drift, detail
		}
	}
	if found.Kind == "" {
		return found, false, nil
	}
	busy, err = r.isBusy(ctx, repo, known)
	if busy {
		return Finding{}, true, err
	}
	return found, false, err
}

// drift describes the first difference between volume and state, or returns "".
func drift(published map[events.Ref]string, heads map[string]string) string {
	for ref, commit := range published {
		head := heads[ref.String()]
		if head == "" {
			return fmt.Sprintf("%s is published at %.12s, but not in the state", ref, commit)
		}
		if head != commit {
			return fmt.Sprintf("%s is published at %.12s, but the state names %.12s", ref, commit, head)
		}
		delete(heads, ref.String())
	}
	for name, head := range heads {
		return fmt.Sprintf("%s is at %.12s in the state, but not published", name, head)
	}
	return ""
}

// unwanted describes a ref that is published although no watch keeps it and only watches have requested it, or
// returns "".
func unwanted(published volume.Published, known state.Repo, watches []watch.Watch) string {
	names := watch.NamesOf(watches, watch.OfferOf(published.Plain, published.Changed))
	for ref := range published.Commits {
		if !names.Wanted[ref] && known.OnlyWatched(ref) {
			return fmt.Sprintf("%s is published, but no watch keeps it", ref)
		}
	}
	return ""
}

// isBusy reports whether a worker holds or waits for the repository, or has settled since its state was read.
func (r Reconciler) isBusy(ctx context.Context, repo events.RepoPath, known state.Repo) (bool, error) {
	lock, err := r.Locks.Status(ctx, repo.Key())
	if err != nil || lock.Held || len(lock.Waiters) > 0 {
		return true, err
	}
	now, err := r.States.Load(ctx, repo)
	return now.Fence() != known.Fence(), err
}

// givenTo returns the apps that have received a tree.
func givenTo(known state.Repo) map[string]bool {
	given := map[string]bool{}
	for _, g := range known.AllGiven() {
		given[g.App] = true
	}
	return given
}

// known checks repositories that are known, but neither watched nor on the volume.
func (r Reconciler) known(ctx context.Context, watched map[string]bool, report *Report) error {
	for cursor := uint64(0); ; {
		page, err := r.States.List(ctx, "", cursor, 1000)
		if err != nil {
			return err
		}
		for _, summary := range page.Repos {
			repo, err := events.ParseRepoPath(summary.Repo)
			if err != nil || summary.Synced.IsZero() || watched[repo.Key()] {
				continue
			}
			known, err := r.States.Load(ctx, repo)
			if err != nil {
				return err
			}
			if _, there, err := r.Volume.Published(repo); there || err != nil || known.Synced().IsZero() {
				continue
			}
			busy, err := r.isBusy(ctx, repo, known)
			if err != nil {
				return err
			}
			if busy {
				report.Busy++
				continue
			}
			r.add(ctx, report, Finding{Kind: Missing, Repo: repo, Detail: "synced before, but not on the volume; not watched"})
		}
		if cursor = page.Next; cursor == 0 {
			return nil
		}
	}
}

func (r Reconciler) publish(ctx context.Context, c events.Change) error {
	if r.DryRun {
		return nil
	}
	c.Source = r.Source
	change, err := events.NewChange(c)
	if err != nil {
		return err
	}
	return r.Publish(ctx, change)
}

func (r Reconciler) add(ctx context.Context, report *Report, found Finding) {
	report.Findings = append(report.Findings, found)
	r.Log.WarnContext(ctx, "inconsistency found", "kind", string(found.Kind), "repo", found.Repo.String(),
		"detail", found.Detail, "asked", found.Asked)
}
