package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"lockstep/events"
	"lockstep/internal/operate"
	"lockstep/internal/state"
)

// Repos reads the state of repositories. [state.Store] implements it.
type Repos interface {
	List(ctx context.Context, prefix string, cursor uint64, limit int) (state.Page, error)
	LoadAt(ctx context.Context, repo events.RepoPath) (state.Repo, time.Time, error)
	NextPoll(ctx context.Context, repo events.RepoPath) (time.Time, error)
}

// RepoSummary is a repository in a list, as shown by the API and the command line.
type RepoSummary struct {
	state.Summary
	Synced  *time.Time `json:"synced,omitempty"` // when the last sync was settled
	Circuit Circuit    `json:"circuit"`
}

// Circuit is a circuit breaker as shown by the API and the command line.
type Circuit struct {
	Phase     state.CircuitPhase `json:"phase"`
	Failures  int                `json:"failures"` // consecutive failures that count toward opening
	Trips     int                `json:"trips,omitempty"`
	OpenUntil *time.Time         `json:"open_until,omitempty"` // only while open; by Redis' clock
}

// Repo is the complete state of one repository.
type Repo struct {
	RepoSummary
	Remote string            `json:"remote,omitempty"`
	Poll   *time.Time        `json:"next_poll,omitempty"` // by Redis' clock; nil if it is not polled
	Heads  map[string]string `json:"heads"`               // ref to published commit
	Given  []state.Given     `json:"given"`               // the commit last delivered to each app
	Lock   operate.Lease     `json:"lock"`
	// of refs whose watches have rules, refused ones first; without Rules and Told
	Checks []state.Check   `json:"checks,omitempty"`
	Lacks  []state.Missing `json:"missing_submodules,omitempty"` // by ref

	Awaited *state.Awaited `json:"awaited,omitempty"` // announced commits that the remote does not show yet
}

// NewRepoSummary converts a summary.
func NewRepoSummary(s state.Summary) RepoSummary {
	shown := RepoSummary{Summary: s, Circuit: Circuit{
		Phase: s.Circuit.Phase(), Failures: s.Circuit.Failures, Trips: s.Circuit.Trips,
	}}
	if !s.Synced.IsZero() {
		shown.Synced = &s.Synced
	}
	if shown.Circuit.Phase == state.CircuitOpen {
		shown.Circuit.OpenUntil = &s.Circuit.Until
	}
	return shown
}

// ErrUnknownRepo is returned for a repository without state.
var ErrUnknownRepo = errors.New("unknown repository; no worker has processed it under this prefix")

// ReadRepo reads the state and the lease of one repository. It returns [ErrUnknownRepo] if there is neither.
func ReadRepo(ctx context.Context, repos Repos, leases *operate.Leases, repo events.RepoPath) (Repo, error) {
	loaded, now, err := repos.LoadAt(ctx, repo)
	if err != nil {
		return Repo{}, err
	}
	lease, err := leases.Get(ctx, "", repo)
	if err != nil {
		return Repo{}, err
	}
	if loaded.IsZero() && !lease.Held {
		return Repo{}, fmt.Errorf("%s: %w", repo, ErrUnknownRepo)
	}
	shown := Repo{
		RepoSummary: NewRepoSummary(loaded.Summary(now)), Remote: loaded.Remote(), Heads: loaded.Heads(),
		Given: loaded.AllGiven(), Lock: lease, Lacks: loaded.Missing(),
	}
	awaited := loaded.Awaited().Without(func(state.Announcement) bool { return false }, now)
	if len(awaited.Commits) > 0 {
		shown.Awaited = &awaited
	}
	for _, c := range loaded.Checks() {
		c.Rules, c.Told = "", nil
		shown.Checks = append(shown.Checks, c)
	}
	if shown.Repo == "" {
		shown.Repo = repo.String()
	}
	next, err := repos.NextPoll(ctx, repo)
	if !next.IsZero() {
		shown.Poll = &next
	}
	return shown, err
}

// HideMissing removes the errors of what is missing, which name hosts and credentials.
func HideMissing(lacks []state.Missing) {
	for _, m := range lacks {
		for i := range m.First {
			m.First[i].Error = ""
		}
	}
}

// hideErrors removes from failures what names hosts and credentials. The rest is public.
func hideErrors(failing []state.Trouble) {
	for i := range failing {
		failing[i].Error, failing[i].Credential = "", ""
	}
}

// listRepos lists repositories, with the errors of those that fail if admin permits it.
func listRepos(repos Repos, admin func(*http.Request) bool) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		query := r.URL.Query()
		limit, err := pageLimit(r)
		if err != nil {
			return nil, badRequest(err)
		}
		var cursor uint64
		if text := query.Get("after"); text != "" {
			if cursor, err = strconv.ParseUint(text, 10, 64); err != nil {
				return nil, badRequest(errors.New("after: want the value of \"next\" in the previous page"))
			}
		}
		page, err := repos.List(r.Context(), query.Get("prefix"), cursor, cmp.Or(limit, 100))
		if err != nil {
			return nil, err
		}
		shown := struct {
			Repos   []RepoSummary `json:"repos"`
			Next    string        `json:"next,omitempty"`
			Missing string        `json:"missing_cell,omitempty"`
		}{Repos: make([]RepoSummary, 0, len(page.Repos)), Missing: page.Missing}
		for _, summary := range page.Repos {
			if !admin(r) {
				hideErrors(summary.Failing)
			}
			shown.Repos = append(shown.Repos, NewRepoSummary(summary))
		}
		if page.Next != 0 {
			shown.Next = strconv.FormatUint(page.Next, 10)
		}
		return shown, nil
	})
}

// showRepo shows a repository, with the errors of its failures if admin permits it.
func showRepo(repos Repos, leases *operate.Leases, admin func(*http.Request) bool) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		repo, err := events.ParseRepoPath(r.PathValue("repo"))
		if err != nil {
			return nil, badRequest(err)
		}
		shown, err := ReadRepo(r.Context(), repos, leases, repo)
		if errors.Is(err, ErrUnknownRepo) {
			return nil, problem{err, http.StatusNotFound}
		}
		if !admin(r) {
			hideErrors(shown.Failing)
		}
		HideMissing(shown.Lacks) // this endpoint is open
		return shown, err
	})
}
