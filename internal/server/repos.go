package server

import (
	"cmp"
	"net/http"

	"lockstep/events"
	"lockstep/internal/operate"
	"lockstep/internal/state"
)

// HideMissing removes the errors of what is missing, which name hosts and credentials.
func HideMissing(lacks []state.Missing) {
	for _, m := range lacks {
		for i := range m.First {
			m.First[i].Error = ""
		}
	}
}

// HideFailures removes from failures what names hosts and credentials. The rest is public.
func HideFailures(failing []state.Trouble) {
	for i := range failing {
		failing[i].Error, failing[i].Credential = "", ""
	}
}

// listRepos lists repositories, with the errors of those that fail if admin permits it.
func listRepos(repos *operate.Repos, admin func(*http.Request) bool) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		query := r.URL.Query()
		limit, err := pageLimit(r)
		if err != nil {
			return nil, badRequest(err)
		}
		page, err := repos.Page(r.Context(), query.Get("prefix"), query.Get("after"), cmp.Or(limit, 100))
		for _, summary := range page.Repos {
			if !admin(r) {
				HideFailures(summary.Failing)
			}
		}
		return page, err
	})
}

// showRepo shows a repository, with the errors of its failures if admin permits it.
func showRepo(repos *operate.Repos, admin func(*http.Request) bool) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		repo, err := events.ParseRepoPath(r.PathValue("repo"))
		if err != nil {
			return nil, badRequest(err)
		}
		shown, err := repos.Get(r.Context(), repo)
		if !admin(r) {
			HideFailures(shown.Failing)
		}
		HideMissing(shown.Lacks) // this endpoint is open
		return shown, err
	})
}

// removeRepo removes what is known of a repository that has nothing.
func removeRepo(repos *operate.Repos) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		repo, err := events.ParseRepoPath(r.PathValue("repo"))
		if err != nil {
			return nil, badRequest(err)
		}
		return repos.Remove(r.Context(), repo)
	})
}
