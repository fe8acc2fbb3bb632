package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/cells"
)

// source is the reader of the cell that a repository leaves.
type source struct {
	base  string // URL for what that cell has, without a trailing slash
	token string // of the operator; "" for a reader on this machine that needs none
	http  *http.Client
}

const (
	listTimeout = 30 * time.Second
	maxList     = 64 << 20 // bytes
)

func newSource(cell, base, token string, transport http.RoundTripper) (source, error) {
	u, err := url.Parse(base)
	switch {
	case base == "":
		return source{}, events.Errorf(events.Retryable, events.ClassConfig,
			"cell %s has no reader to copy from: run one with --roles reader and --cell %s", cell, cell)
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return source{}, events.Errorf(events.Retryable, events.ClassConfig, "the reader of cell %s has no valid URL", cell)
	case token != "" && !cells.MayHaveTokens(u):
		return source{}, events.Errorf(events.Retryable, events.ClassConfig, "the reader of cell %s is reached over "+
			"http, so the API token would be sent unencrypted; use https", cell)
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return source{strings.TrimRight(base, "/") + "/cells/" + cell, token, client}, nil // only what that cell has
}

// git returns the Git URL of a repository.
func (s source) git(repo events.RepoPath) string { return s.base + "/git/" + repo.String() + ".git" }

// ref is a published ref in the old cell.
type ref struct {
	Ref     events.Ref   `json:"ref"`
	Commit  string       `json:"commit"`
	Default bool         `json:"default"`
	Depth   events.Depth `json:"depth"`

	LFS        bool              `json:"lfs"`
	Submodules events.Submodules `json:"submodules"`
}

// refs lists the refs that are published in the old cell.
func (s source) refs(ctx context.Context, repo events.RepoPath) ([]ref, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	refs := s.base + "/api/v1/repos/" + url.PathEscape(repo.String()) + "/refs"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, refs, nil)
	if err != nil {
		return nil, err
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return nil, events.Errorf(events.Retryable, events.ClassNetwork, "list the refs at the old cell's reader: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, events.Errorf(events.Retryable, events.ClassServer,
			"list the refs at the old cell's reader: HTTP %d", resp.StatusCode)
	}
	var list struct {
		Refs []ref `json:"refs"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxList)).Decode(&list); err != nil {
		return nil, fmt.Errorf("list the refs at the old cell's reader: %w", err)
	}
	return list.Refs, nil
}
