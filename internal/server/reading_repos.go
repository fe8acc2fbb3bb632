package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/changes"
	"lockstep/internal/watch"
)

// ReadableRepo is a repository as shown to an app that reads it.
type ReadableRepo struct {
	Repo    string       `json:"repo"`
	Git     string       `json:"git"`               // URL for Git
	Default string       `json:"default,omitempty"` // default branch, if the app reads it
	Refs    []VisibleRef `json:"refs"`
}

// ReadableState is the state of a repository as shown to an app.
type ReadableState struct {
	ReadableRepo
	Last   *ReadableResult `json:"last,omitempty"`   // the app's last result, if it is among the newest
	Failed *ReadableResult `json:"failed,omitempty"` // the app's last failure, if it is among the newest
}

// ReadableResult is a result of an app.
type ReadableResult struct {
	Type  string       `json:"type"` // such as synced
	ID    string       `json:"id"`
	Time  time.Time    `json:"time"`
	Ref   string       `json:"ref,omitempty"`
	After string       `json:"after,omitempty"` // commit
	Class events.Class `json:"class,omitempty"` // of a failure
	Error string       `json:"error,omitempty"`
}

// orForApps serves requests with the token of an app with next, and others with open. If open is nil, only
// the operator and apps are served.
func (s *Reading) orForApps(cfg Config, open http.Handler, next reader) http.Handler {
	guard, forApps := cfg.guard(), s.authenticated(cfg, "repos", s.limited(next))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open != nil && (len(r.Header.Values("Authorization")) == 0 || guard.Is(access.TokenOf(r))) {
			open.ServeHTTP(w, r)
			return
		}
		forApps.ServeHTTP(w, r)
	})
}

// listReadable lists the repositories that an app reads.
func (s *Reading) listReadable(w http.ResponseWriter, r *http.Request, from request) error {
	if from.who.Operator {
		return s.asOperator(w, r, listRepos(s.Repos, anyRequest))
	}
	limit, err := pageLimit(r)
	if err != nil {
		return badRequest(err)
	}
	query := r.URL.Query()
	after, nextOf := query.Get("after"), func(own string) string { return own }
	if s.Cells != nil && !onlyOwn(r) {
		at, ended, err := s.cellPageOf(r)
		switch {
		case err != nil:
			return err
		case ended:
			reply(w, http.StatusOK, readablePage{Repos: []ReadableRepo{}})
			return nil
		case at.cell.Cell != s.Cells.Own():
			return s.listElsewhere(w, r, from, at)
		}
		after, nextOf = at.after, at.next
	}
	release, err := s.lists.take(from.who.App, maxLists, maxListsApp, errBusyLists)
	if err != nil {
		return err
	}
	defer release()
	shown := readablePage{Repos: []ReadableRepo{}}
	page := watch.Query{App: from.who.App, Prefix: query.Get("prefix"), After: after, Limit: cmp.Or(limit, 100)}
	next, err := s.Reader.List(r.Context(), page, func(visible access.Visible) error {
		if s.Cells != nil && !s.Cells.IsHere(visible.Repo) {
			// A repository that has left is in the list of its present cell, unless that was read before
			// it came: twice is better than never.
			if at, left := s.Cells.Of(r.Context(), visible.Repo); left && at.Cell > s.Cells.Own() {
				return nil
			}
		}
		one, err := s.readable(r, from, visible)
		shown.Repos = append(shown.Repos, one)
		return err
	})
	if errors.Is(err, watch.ErrBadAfter) {
		return badRequest(err)
	}
	if err != nil {
		return err
	}
	shown.Next = nextOf(next)
	reply(newPatient(w), http.StatusOK, shown)
	return nil
}

// showReadable shows the state of a repository to an app that watches it.
func (s *Reading) showReadable(w http.ResponseWriter, r *http.Request, from request) error {
	if from.who.Operator {
		return s.asOperator(w, r, showRepo(s.Repos, anyRequest))
	}
	repo, err := events.ParseRepoPath(r.PathValue("repo"))
	if err != nil {
		return access.ErrNotFound
	}
	visible, err := s.Reader.Watched(r.Context(), from.who, repo)
	if err != nil {
		return err
	}
	described, err := s.readable(r, from, visible)
	if err != nil {
		return err
	}
	shown := ReadableState{ReadableRepo: described}
	if s.Feed != nil {
		release, err := s.lists.take(from.who.App, maxLists, maxListsApp, errBusyLists)
		if err != nil {
			return err
		}
		defer release()
		newest, err := s.Feed.Newest(r.Context(), from.who.App, repo)
		if err != nil {
			return err
		}
		shown.Last, shown.Failed = readableResult(newest.Last), readableResult(newest.Failed)
	}
	reply(w, http.StatusOK, shown)
	return nil
}

// asOperator serves the operator at a process without open endpoints.
func (s *Reading) asOperator(w http.ResponseWriter, r *http.Request, handler http.Handler) error {
	if s.Repos == nil {
		return access.ErrNotFound
	}
	handler.ServeHTTP(w, r)
	return nil
}

// anyRequest admits each request.
func anyRequest(*http.Request) bool { return true }

// readable describes a repository to an app.
func (s *Reading) readable(r *http.Request, from request, visible access.Visible) (shown ReadableRepo, err error) {
	shown.Repo = visible.Repo.String()
	shown.Git = from.gitURL(r, shown.Repo)
	shown.Refs, err = s.readableRefs(r.Context(), visible)
	for _, ref := range shown.Refs {
		if ref.Default {
			shown.Default = ref.Ref
		}
	}
	return shown, err
}

// gitURL returns the URL of a repository for Git, at the address that the sender uses.
func (from request) gitURL(r *http.Request, repo string) string {
	return from.cfg.baseURL(r) + gitPath + (&url.URL{Path: repo}).EscapedPath() + ".git"
}

func (s *Reading) readableRefs(ctx context.Context, visible access.Visible) ([]VisibleRef, error) {
	if len(visible.Refs) == 0 { // nothing is read from the volume
		return []VisibleRef{}, nil
	}
	depths, err := s.Reader.Depths(ctx, visible)
	if err != nil {
		return nil, err
	}
	refs := make([]VisibleRef, 0, len(visible.Refs))
	for i, ref := range visible.Refs {
		refs = append(refs, VisibleRef{Ref: ref.Ref.String(), Commit: ref.Commit, Default: ref.Default, Depth: depths[i]})
	}
	return refs, nil
}

func readableResult(r *events.Result) *ReadableResult {
	if r == nil {
		return nil
	}
	return &ReadableResult{changes.Kind(r.Type), r.ID, r.Time, r.Ref.String(), r.After, r.Class, r.Error}
}
