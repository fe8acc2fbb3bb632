package gitserver

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// AcceptTokens answers requests for repo with 401 unless they contain one of these tokens, as a Bearer token or as the
// password of Basic credentials. A later call replaces the tokens and so revokes the old ones. Without tokens, no
// authentication is required.
func (s *Server) AcceptTokens(repo string, tokens ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state(repo).user, s.state(repo).tokens = "", tokens
}

// LimitToken answers all requests with this token, or without one if it is "", with 429 and a Retry-After of
// whole seconds, until it is called with 0.
func (s *Server) LimitToken(token string, retryAfter time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits[token] = retryAfter
}

// TokensSeen returns the token of each request for repo, in order; "" for a request without one.
func (s *Server) TokensSeen(repo string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.state(repo).usedTokens)
}

// tokenOf returns the token of a request, or "".
func tokenOf(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}
