package server

import (
	"net/http"

	gitserve "lockstep/internal/git/serve"
)

// ReadingObserver observes requests of readers. [telemetry.Reading] implements it.
type ReadingObserver interface {
	Request(kind string, status int, bytes int64) // after the response
	Pack(shared bool)                             // after a pack was sent
}

// observed reports requests for a kind of thing to the observer, if there is one.
func (s *Reading) observed(kind string, next http.Handler) http.Handler {
	if s.Observer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &measured{ResponseWriter: w, status: http.StatusOK}
		defer func() { s.Observer.Request(kind, answer.status, answer.sent) }() // also if the handler aborts the response
		next.ServeHTTP(answer, r)
	})
}

// gitServed reports a request of Git's clients.
func (s *Reading) gitServed(served gitserve.Served) {
	if s.Observer != nil && served.Bytes > 0 {
		s.Observer.Pack(served.Shared)
	}
}

// measured is a response whose status and size are observed.
type measured struct {
	http.ResponseWriter
	status int
	sent   int64
}

func (m *measured) WriteHeader(status int) {
	m.status = status
	m.ResponseWriter.WriteHeader(status)
}

func (m *measured) Write(b []byte) (int, error) {
	n, err := m.ResponseWriter.Write(b)
	m.sent += int64(n)
	return n, err
}

// Unwrap supports [http.ResponseController].
func (m *measured) Unwrap() http.ResponseWriter { return m.ResponseWriter }
