package gitserver

import (
	"bytes"
	"net/http"
	"slices"
	"time"
)

// What requests are for. The first and the last are paths of the smart HTTP protocol.
const (
	infoRefs     = "info/refs"       // a list of refs
	capabilities = "capabilities"    // the capabilities of protocol 2
	uploadPack   = "git-upload-pack" // objects
)

// serviceOf returns the service that a request is for. Under protocol 2, info/refs returns the capabilities,
// and a list of refs is a request to git-upload-pack.
func serviceOf(path string, header http.Header, body []byte) string {
	switch {
	case path == infoRefs && header.Get("Git-Protocol") == "version=2":
		return capabilities
	case path == uploadPack && bytes.HasPrefix(body, []byte("0014command=ls-refs")):
		return infoRefs
	}
	return path
}

// Stats counts the requests for a repository.
type Stats struct {
	InfoRefs     int      // requests for a list of refs
	Capabilities int      // requests for the capabilities of protocol 2
	UploadPacks  int      // requests for objects
	Active       int      // upload-packs in flight
	MaxActive    int      // maximum of Active
	Limited      int      // requests answered with 429, see LimitToken
	Credentials  []string // distinct Authorization headers, in order of appearance
}

// Stats returns the request counts of repo.
func (s *Server) Stats(repo string) Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.state(repo).Stats
	stats.Credentials = slices.Clone(stats.Credentials)
	return stats
}

// MaxRepos returns the maximum number of repositories that were in upload-pack at the same time.
func (s *Server) MaxRepos() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxRepos
}

// begin counts a request and returns the status to answer it with, or 0 to serve it, and the delay of a limited token.
func (s *Server) begin(repo, service string, r *http.Request) (status int, retryAfter time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state(repo)
	switch service {
	case capabilities:
		state.Capabilities++
	case infoRefs:
		state.InfoRefs++
	case uploadPack:
		state.UploadPacks++
		state.Active++
		state.MaxActive = max(state.MaxActive, state.Active)
		s.maxRepos = max(s.maxRepos, s.activeRepos())
	}
	if auth := r.Header.Get("Authorization"); auth != "" && !slices.Contains(state.Credentials, auth) {
		state.Credentials = append(state.Credentials, auth)
	}
	token := tokenOf(r)
	state.usedTokens = append(state.usedTokens, token)
	if user, _, ok := r.BasicAuth(); len(state.tokens) > 0 &&
		(!slices.Contains(state.tokens, token) || ok && state.user != "" && user != state.user) {
		return http.StatusUnauthorized, 0
	}
	if delay := s.limits[token]; delay > 0 {
		state.Limited++
		return http.StatusTooManyRequests, delay
	}
	return state.status, 0
}

func (s *Server) end(repo, service string) {
	if service != uploadPack {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state(repo).Active--
}

func (s *Server) activeRepos() int {
	active := 0
	for _, state := range s.repos {
		if state.Active > 0 {
			active++
		}
	}
	return active
}
