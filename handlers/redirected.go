package handlers

import (
	"context"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/watch"
)

// redirected returns the move of a repository whose remote permanently redirects to another path of the same
// host, if a watch asks to follow it. It returns false if the move would be refused: if a credential of a
// watch may not be sent to the new URL, or the new path is watched at another remote. Then the repository
// stays where it is, and is fetched through the redirect.
func (h *Handlers) redirected(
	ctx context.Context, job Job, watches []watch.Watch, admitted watch.Watch, moved, id string,
) (events.Change, bool, error) {
	if moved == "" || !slices.ContainsFunc(watches, func(w watch.Watch) bool { return w.FollowMoves }) {
		return events.Change{}, false, nil
	}
	if h.Volume.Asked(admitted.URL) != admitted.URL || // moved is not a URL that anybody writes
		events.CanonicalHost(moved) != events.CanonicalHost(admitted.URL) ||
		strings.EqualFold(events.CanonicalRemote(moved), events.CanonicalRemote(admitted.URL)) ||
		events.CheckRemote(moved) != nil {
		return events.Change{}, false, nil
	}
	if strings.HasSuffix(admitted.URL, ".git") && !strings.HasSuffix(moved, ".git") {
		moved += ".git" // Gitea leaves it out
	}
	to := job.Change.Repo // a path chosen by the user stays
	if was, err := events.RepoPathFromURL(admitted.URL); err == nil && was.Equal(to) {
		if to, err = events.RepoPathFromURL(moved); err != nil {
			return events.Change{}, false, nil
		}
	}
	change, err := events.NewChange(events.Change{
		ID: id, Type: events.ChangeMoved, Source: job.Change.Source, Repo: job.Change.Repo, To: to, URL: moved,
		Credential: admitted.Credential, Foreign: admitted.Auto,
	})
	if err != nil {
		return events.Change{}, false, err
	}
	err = h.checkRedirect(ctx, change, watches)
	if events.DispositionOf(err) == events.Permanent {
		return events.Change{}, false, nil
	}
	return change, err == nil, err
}

// checkRedirect refuses a move whose URL a credential of a watch may not be sent to, as it changes the URL of
// all watches.
func (h *Handlers) checkRedirect(ctx context.Context, move events.Change, watches []watch.Watch) error {
	names := []string{move.Credential}
	for _, w := range watches {
		names = append(names, w.Credential)
	}
	for _, name := range names {
		if _, err := h.resolve(ctx, name, move.URL); err != nil {
			return err
		}
	}
	return h.checkTarget(ctx, move)
}
