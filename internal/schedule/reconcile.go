package schedule

import (
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

// Registry knows what is watched; a [watch.Registry] does.
type Registry interface {
	Repos(ctx context.Context) iter.Seq2[events.RepoPath, error]
	Of(ctx context.Context, repo events.RepoPath) (watch.Set, error)
}

// States is what Redis knows of repositories; a [state.Store] is.
type States interface {
	Load(ctx context.Context, repo events.RepoPath) (state.Repo, error)
	List(ctx context.Context, prefix string, cursor uint64, limit int) (state.Page, error)
}

// Volume is what is on disk; a [volume.Volume] is.
type Volume interface {
	Repos() iter.Seq2[events.RepoPath, error]
	Published(repo events.RepoPath) (volume.Published, bool, error)
}

// Locks tells what is being worked on; a [locking.Inspector] does.
type Locks interface {
	Status(ctx context.Context, key string) (locking.Status, error)
}

// Kind is what was found.
type Kind string

// The kinds.
const (
	NeverSynced    Kind = "never_synced"    // watched, and its app was never given a tree
	Drift          Kind = "drift"           // state and volume do not agree
	Missing        Kind = "missing"         // known, and not on the volume
	Orphan         Kind = "orphan"          // on the volume, and not watched any more
	UnwatchedClone Kind = "unwatched_clone" // on the volume, and never watched
)

// Kinds are all kinds.
var Kinds = []Kind{NeverSynced, Drift, Missing, Orphan, UnwatchedClone}

// Finding is something that is not as it should be.
type Finding struct {
	Kind   Kind            `json:"kind"`
	Repo   events.RepoPath `json:"repo"`
	Detail string          `json:"detail"`
	Asked  string          `json:"asked,omitempty"` // for what, to repair it: due or removed; empty: it is only reported
}

// Report is what a reconciliation came to.
type Report struct {
	Watched  int       `json:"watched"` // repositories
	Clones   int       `json:"clones"`
	Busy     int       `json:"busy"` // passed over
	Findings []Finding `json:"findings"`
}

// Reconciler compares registry, state and volume.
type Reconciler struct {
	Registry Registry
	States   States
	Volume   Volume
	Locks    Locks
	Publish  func(ctx context.Context, change events.Change) error
	Source   string // of changes, as "/lockstep/worker/w1"
	Prune    bool   // remove clones that nobody ever watched, too
	DryRun   bool   // ask for nothing
	Poll     bool   // have each watched repository polled, whatever was found
	Log      *slog.Logger
}

// Run goes through everything once. It ends early with an error when Redis or the volume cannot be read.
func (r Reconciler) Run(ctx context.Context) (Report, error) {
	report := Report{Findings: []Finding{}}
	watched, err := r.watched(ctx, &report)
	if err == nil {
		err = r.clones(ctx, watched, &report)
	}
	if err == nil {
		err = r.known(ctx, watched, &report)
	}
	if err != nil {
		return report, fmt.Errorf("reconcile: %w", err)
	}
	return report, nil
}

// watched looks at each repository that is watched, and returns which are.
func (r Reconciler) watched(ctx context.Context, report *Report) (map[string]bool, error) {
	watched := map[string]bool{}
	for repo, err := range r.Registry.Repos(ctx) {
		if err != nil {
			return nil, err
		}
		watched[repo.Key()] = true
		report.Watched++
		found, busy, err := r.inspect(ctx, repo)
		if unsound(err) {
			r.Log.WarnContext(ctx, "what is watched of a repository cannot be read: it is not compared", "repo", repo.String(), "error", err)
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
		if err := r.ask(ctx, events.Change{Type: events.ChangeDue, Repo: repo, OnBusy: events.BusySkip}); err != nil {
			return nil, err
		}
		if found.Kind != "" {
			found.Asked = "due"
			r.add(ctx, report, found)
		}
	}
	return watched, nil
}

// unsound reports whether what the registry keeps of a repository is at fault, and not the way there.
func unsound(err error) bool {
	_, ok := errors.AsType[*events.Error](err)
	return ok
}

// inspect looks for what is wrong with a watched repository. It reads before it asks whether the
// repository is held: whoever changed something in between still holds it, or has settled it by a fence that is
// not the one read.
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
		found.Kind, found.Detail = Missing, "it was synced, and is not on the volume"
	default:
		for _, w := range set.Watches {
			if !given[w.App] {
				found.Kind, found.Detail = NeverSynced, w.App+" was never given a tree"
			}
		}
		if detail := drift(published.Commits, known.Heads()); detail != "" {
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

// drift says where volume and state do not agree, or "".
func drift(published map[events.Ref]string, heads map[string]string) string {
	for ref, commit := range published {
		head := heads[ref.String()]
		if head == "" {
			return fmt.Sprintf("%s is published at %.12s, and not known", ref, commit)
		}
		if head != commit {
			return fmt.Sprintf("%s is published at %.12s, and known at %.12s", ref, commit, head)
		}
		delete(heads, ref.String())
	}
	for name, head := range heads {
		return fmt.Sprintf("%s is known at %.12s, and not published", name, head)
	}
	return ""
}

// isBusy reports whether somebody works on the repository, or has done so since its state was read.
func (r Reconciler) isBusy(ctx context.Context, repo events.RepoPath, known state.Repo) (bool, error) {
	lock, err := r.Locks.Status(ctx, repo.Key())
	if err != nil || lock.Held || len(lock.Waiters) > 0 {
		return true, err
	}
	now, err := r.States.Load(ctx, repo)
	return now.Fence() != known.Fence(), err
}

func givenTo(known state.Repo) map[string]bool {
	given := map[string]bool{}
	for _, g := range known.AllGiven() {
		given[g.App] = true
	}
	return given
}

// clones looks at what is on the volume and not watched.
func (r Reconciler) clones(ctx context.Context, watched map[string]bool, report *Report) error {
	var orphans, others []Finding
	for repo, err := range r.Volume.Repos() {
		if err != nil {
			r.Log.WarnContext(ctx, "cannot look at a repository on the volume", "repo", repo.String(), "error", err)
			continue
		}
		_, there, err := r.Volume.Published(repo)
		if err != nil || !there {
			continue // damaged: verify says how; or moved away
		}
		report.Clones++
		if watched[repo.Key()] {
			continue
		}
		known, err := r.States.Load(ctx, repo)
		if err != nil {
			return err
		}
		set, err := r.Registry.Of(ctx, repo)
		if err != nil && !unsound(err) {
			return err
		}
		if err != nil || len(set.Watches) > 0 { // since the list was read
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
		if known.Watched() {
			orphans = append(orphans, Finding{Kind: Orphan, Repo: repo, Detail: "nobody watches it any more"})
		} else {
			others = append(others, Finding{Kind: UnwatchedClone, Repo: repo, Detail: "nobody ever watched it"})
		}
	}
	few := len(watched) > 0 && len(orphans) <= max(fewOrphans, len(watched)/10)
	return errors.Join(r.remove(ctx, report, orphans, few || r.Prune), r.remove(ctx, report, others, r.Prune))
}

// fewOrphans is how many clones are removed at once that were watched and are not, whatever else is watched. More
// than these and a tenth of what is watched are more likely to be what a Redis has lost, or is yet to be told again.
const fewOrphans = 10

// remove reports clones, and has them removed if it may be.
func (r Reconciler) remove(ctx context.Context, report *Report, clones []Finding, mayBe bool) error {
	for _, found := range clones {
		if mayBe {
			found.Asked = "removed"
			if err := r.ask(ctx, events.Change{Type: events.ChangeRemoved, Repo: found.Repo, Force: true}); err != nil {
				return err
			}
		}
		r.add(ctx, report, found)
	}
	return nil
}

// known looks at what is known, not watched and not on the volume.
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
			r.add(ctx, report, Finding{Kind: Missing, Repo: repo, Detail: "it was synced, and is not on the volume; nobody watches it"})
		}
		if cursor = page.Next; cursor == 0 {
			return nil
		}
	}
}

// ask publishes a change that repairs something.
func (r Reconciler) ask(ctx context.Context, c events.Change) error {
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
	r.Log.WarnContext(ctx, "reconciling found what is not as it should be", "kind", string(found.Kind), "repo", found.Repo.String(),
		"detail", found.Detail, "asked", found.Asked)
}
