package gitserver

import (
	"net/http"
	"slices"
	"strings"
)

// AcceptTokens has requests for repo answered with 401 unless they carry one of these tokens, as a
// Bearer token or as the password of Basic credentials. Called again it replaces them: a token left out
// is revoked. None: nobody is asked for one.
func (s *Server) AcceptTokens(repo string, tokens ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state(repo).tokens = tokens
}

// TokensSeen returns the token of each request for repo so far, in order; "" for one without.
func (s *Server) TokensSeen(repo string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.state(repo).seen)
}

// tokenOf returns the token that a request carries, or "".
func tokenOf(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}
