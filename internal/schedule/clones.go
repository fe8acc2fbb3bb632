package schedule

import (
	"context"
	"errors"

	"lockstep/events"
)

// clones checks clones on the volume that are not watched.
func (r Reconciler) clones(ctx context.Context, watched map[string]bool, report *Report) error {
	var orphans, others []Finding
	for repo, err := range r.Volume.Repos() {
		if err != nil {
			r.Log.WarnContext(ctx, "repository on the volume cannot be read, skipped", "repo", repo.String(), "error", err)
			continue
		}
		_, there, err := r.Volume.Published(repo)
		if err != nil || !there {
			continue // damaged, as verify reports, or moved
		}
		report.Clones++
		if watched[repo.Key()] {
			continue
		}
		known, err := r.States.Load(ctx, repo)
		if err != nil {
			return err
		}
		if !known.IsHere() { // it was moved to another cell, whose readers it may serve
			continue
		}
		set, err := r.Registry.Of(ctx, repo)
		if err != nil && !isRegistryFault(err) {
			return err
		}
		if err != nil || len(set.Watches) > 0 { // watched since the list was read
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
			orphans = append(orphans, Finding{Kind: Orphan, Repo: repo, Detail: "no longer watched"})
		} else {
			others = append(others, Finding{Kind: UnwatchedClone, Repo: repo, Detail: "never watched"})
		}
	}
	few := len(watched) > 0 && len(orphans) <= max(fewOrphans, len(watched)/10)
	return errors.Join(r.remove(ctx, report, orphans, few || r.Prune), r.remove(ctx, report, others, r.Prune))
}

// fewOrphans is the number of orphans that may always be removed. If there are more, and more than a tenth of
// the watched repositories, the registry was probably lost.
const fewOrphans = 10

func (r Reconciler) remove(ctx context.Context, report *Report, clones []Finding, allowed bool) error {
	for _, found := range clones {
		if allowed {
			found.Asked = "removed"
			if err := r.publish(ctx, events.Change{Type: events.ChangeRemoved, Repo: found.Repo, Force: true}); err != nil {
				return err
			}
		}
		r.add(ctx, report, found)
	}
	return nil
}
