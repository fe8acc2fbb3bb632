package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"lockstep/events"
	"lockstep/internal/watch"
)

var (
	errNoPublisher = errors.New("this process adds no changes; use a process with the role receiver, or lockstep publish")
	errNoRemote    = errors.New("nothing to sync: no app watches this repository, and its remote is unknown")
)

// syncNow asks a repository's remote for what its watches miss. Without watches it syncs the default branch
// from the known remote.
func (d *Dashboard) syncNow(w http.ResponseWriter, r *http.Request, v visitor) {
	repo, err := events.ParseRepoPath(r.PostForm.Get("repo"))
	if err != nil {
		d.fail(w, r, http.StatusBadRequest, err)
		return
	}
	if d.cfg.Publish == nil {
		d.fail(w, r, http.StatusConflict, errNoPublisher)
		return
	}
	change, entry, err := d.publishNow(r.Context(), repo)
	switch {
	case errors.Is(err, errNoRemote):
		d.fail(w, r, http.StatusConflict, err)
	case err != nil:
		d.cfg.Log.WarnContext(r.Context(), "sync not requested", "repo", repo.String(), "error", err)
		d.fail(w, r, http.StatusServiceUnavailable, errRedis)
	default:
		d.cfg.Log.InfoContext(r.Context(), "sync requested on the dashboard", "by", v.name, "repo", repo.String(),
			"job", change.ID, "entry", entry)
		d.setFlash(w, fmt.Sprintf("A sync of %s is requested, as entry %s. Its results appear below.", repo, entry))
		http.Redirect(w, r, link("/dashboard/repo", "repo", repo.String()), http.StatusSeeOther)
	}
}

func (d *Dashboard) publishNow(ctx context.Context, repo events.RepoPath) (c events.Change, entry string, err error) {
	c, err = d.changeNow(ctx, repo)
	if err != nil {
		return c, "", err
	}
	entry, err = d.cfg.Publish(ctx, c)
	return c, entry, err
}

// changeNow returns a poll, which syncs each watched ref that is out of date with the credential of its
// watch, or a sync if the repository is not watched.
func (d *Dashboard) changeNow(ctx context.Context, repo events.RepoPath) (events.Change, error) {
	const source = "/lockstep/dashboard"
	registry, err := d.cfg.Watches.In(repo)
	if err != nil {
		return events.Change{}, err
	}
	watches, err := registry.List(ctx, watch.Query{Prefix: repo.Key(), Limit: 1})
	if err != nil {
		return events.Change{}, err
	}
	if len(watches.Watches) > 0 && watches.Watches[0].Repo.Equal(repo) { // sorted: its own path is the first
		return events.NewChange(events.Change{Type: events.ChangeDue, Source: source, Repo: repo})
	}
	known, _, err := d.cfg.Repos.Load(ctx, repo)
	if err != nil {
		return events.Change{}, err
	}
	if known.Remote() == "" {
		return events.Change{}, errNoRemote
	}
	return events.NewChange(events.Change{Source: source, Repo: repo, URL: known.Remote()})
}
