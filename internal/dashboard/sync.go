package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"lockstep/events"
	"lockstep/internal/server"
	"lockstep/internal/watch"
)

var (
	errNoPublisher = server.Problem(errors.New("this process adds no changes; use a process with the role receiver, or "+
		"lockstep publish"), http.StatusConflict)
	errNoRemote = server.Problem(errors.New("nothing to sync: no app watches this repository, and its remote is unknown"),
		http.StatusConflict)
)

// syncNow asks a repository's remote for what its watches miss. Without watches it syncs the default branch
// from the known remote.
func (d *Dashboard) syncNow(w http.ResponseWriter, r *http.Request, v visitor) {
	repo, err := events.ParseRepoPath(r.PostForm.Get("repo"))
	if err != nil {
		d.fail(w, r, badQuery(err))
		return
	}
	if d.cfg.Publish == nil {
		d.fail(w, r, errNoPublisher)
		return
	}
	change, err := d.changeNow(r.Context(), repo)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	entry, err := d.cfg.Publish(r.Context(), change)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.cfg.Log.InfoContext(r.Context(), "sync requested on the dashboard", "by", v.name, "repo", repo.String(),
		"job", change.ID, "entry", entry)
	d.done(w, r, link("/dashboard/repo", "repo", repo.String()),
		fmt.Sprintf("A sync of %s is requested, as entry %s. Its results appear below.", repo, entry))
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
