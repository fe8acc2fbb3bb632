package gitserver

import (
	"net/http"
	"slices"
)

// The services that clients ask for.
const (
	infoRefs   = "info/refs"
	uploadPack = "git-upload-pack"
)

// Stats is what has been asked of one repository.
type Stats struct {
	InfoRefs    int      // requests for the list of refs
	UploadPacks int      // requests for objects
	Active      int      // upload-packs being served now
	MaxActive   int      // most upload-packs ever served at once
	Credentials []string // the distinct Authorization headers seen, in order of appearance
}

// Stats returns what has been asked of repo so far.
func (s *Server) Stats(repo string) Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.state(repo).Stats
	stats.Credentials = slices.Clone(stats.Credentials)
	return stats
}

// MaxRepos returns the most repositories that were ever in upload-pack at once.
func (s *Server) MaxRepos() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxRepos
}

// begin counts a request and returns the status to answer it with, or 0 to serve it.
func (s *Server) begin(repo, service string, r *http.Request) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state(repo)
	switch service {
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
	state.seen = append(state.seen, token)
	if len(state.tokens) > 0 && !slices.Contains(state.tokens, token) || !state.admits(r) {
		return http.StatusUnauthorized
	}
	return state.status
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

func (state *repoState) admits(r *http.Request) bool {
	if state.user == "" && state.password == "" {
		return true
	}
	if user, password, ok := r.BasicAuth(); ok {
		return user == state.user && password == state.password
	}
	return r.Header.Get("Authorization") == "Bearer "+state.password
}
