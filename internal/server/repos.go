package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
)

// Repos is what the API shows of repositories; a [state.Store] is.
type Repos interface {
	List(ctx context.Context, prefix string, cursor uint64, limit int) (state.Page, error)
	LoadAt(ctx context.Context, repo events.RepoPath) (state.Repo, time.Time, error)
}

// RepoSummary is a repository in a list, as the API and the command line show it.
type RepoSummary struct {
	Repo    string     `json:"repo"`
	Synced  *time.Time `json:"synced,omitempty"`  // when the last sync was settled
	Fence   uint64     `json:"fence,omitempty"`   // of the last settled change
	Removed string     `json:"removed,omitempty"` // stream entry of the removal that deleted the clone, if that was the last
	Circuit Circuit    `json:"circuit"`
}

// Circuit is a circuit breaker as the API and the command line show it.
type Circuit struct {
	Phase     state.CircuitPhase `json:"phase"`
	Failures  int                `json:"failures"` // in a row, of those that count
	Trips     int                `json:"trips,omitempty"`
	OpenUntil *time.Time         `json:"open_until,omitempty"` // while it is open; by Redis' clock
}

// Repo is all that is known of one repository.
type Repo struct {
	RepoSummary
	Remote string            `json:"remote,omitempty"`
	Heads  map[string]string `json:"heads"` // ref to published commit
	Given  []state.Given     `json:"given"` // what each app was last given
	Lock   Lock              `json:"lock"`
}

// NewRepoSummary shows a summary.
func NewRepoSummary(s state.Summary) RepoSummary {
	shown := RepoSummary{Repo: s.Repo, Fence: s.Fence, Removed: s.Removed,
		Circuit: Circuit{Phase: s.Circuit.Phase(), Failures: s.Circuit.Failures, Trips: s.Circuit.Trips}}
	if !s.Synced.IsZero() {
		shown.Synced = &s.Synced
	}
	if shown.Circuit.Phase == state.CircuitOpen {
		shown.Circuit.OpenUntil = &s.Circuit.Until
	}
	return shown
}

// ErrUnknownRepo means that nothing is known of a repository.
var ErrUnknownRepo = errors.New("nothing is known of this repository; no worker has met it under this prefix")

// ReadRepo reads all that is known of one repository: [ErrUnknownRepo] when that is nothing.
func ReadRepo(ctx context.Context, repos Repos, locks Locks, repo events.RepoPath) (Repo, error) {
	known, now, err := repos.LoadAt(ctx, repo)
	if err != nil {
		return Repo{}, err
	}
	lock, err := locks.Status(ctx, repo.Key())
	if err != nil {
		return Repo{}, err
	}
	if known.IsZero() && !lock.Held {
		return Repo{}, fmt.Errorf("%s: %w", repo, ErrUnknownRepo)
	}
	shown := Repo{RepoSummary: NewRepoSummary(known.Summary(now)), Remote: known.Remote(), Heads: known.Heads(), Given: known.AllGiven(), Lock: NewLock(lock)}
	if shown.Repo == "" {
		shown.Repo = repo.String()
	}
	return shown, nil
}

const (
	usualRepos = 100
	mostRepos  = 1000
)

func listRepos(repos Repos) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		limit, cursor := usualRepos, uint64(0)
		var err error
		if text := query.Get("limit"); text != "" {
			if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > mostRepos {
				fail(w, http.StatusBadRequest, fmt.Errorf("limit: want 1 to %d", mostRepos))
				return
			}
		}
		if text := query.Get("after"); text != "" {
			if cursor, err = strconv.ParseUint(text, 10, 64); err != nil {
				fail(w, http.StatusBadRequest, errors.New("after: want what the page before gave as next"))
				return
			}
		}
		page, err := repos.List(r.Context(), query.Get("prefix"), cursor, limit)
		if err != nil {
			unavailable(w)
			return
		}
		shown := struct {
			Repos []RepoSummary `json:"repos"`
			Next  string        `json:"next,omitempty"`
		}{Repos: make([]RepoSummary, 0, len(page.Repos))}
		for _, summary := range page.Repos {
			shown.Repos = append(shown.Repos, NewRepoSummary(summary))
		}
		if page.Next != 0 {
			shown.Next = strconv.FormatUint(page.Next, 10)
		}
		reply(w, http.StatusOK, shown)
	})
}

func showRepo(repos Repos, locks Locks) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		repo, err := events.ParseRepoPath(r.PathValue("repo"))
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		shown, err := ReadRepo(r.Context(), repos, locks, repo)
		switch {
		case errors.Is(err, ErrUnknownRepo):
			fail(w, http.StatusNotFound, err)
		case err != nil:
			unavailable(w)
		default:
			reply(w, http.StatusOK, shown)
		}
	})
}
