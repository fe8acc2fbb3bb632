package server

import (
	"net/http"

	gitserve "lockstep/internal/git/serve"
)

// ReadingObserver observes requests of readers. [telemetry.Reading] implements it.
type ReadingObserver interface {
	Request(kind string, status int)
	Sent(kind string, bytes int)
	Pack(shared bool) // after a pack was sent
}

// observed reports requests for a kind of thing to the observer, if there is one.
func (s *Reading) observed(kind string, next http.Handler) http.Handler {
	if s.Observer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &measured{ResponseWriter: w, to: s.Observer, kind: kind}
		defer answer.begin(http.StatusOK) // unless it has begun
		next.ServeHTTP(answer, r)
	})
}

// gitServed reports a request of Git's clients.
func (s *Reading) gitServed(served gitserve.Served) {
	if s.Observer != nil && served.Bytes > 0 {
		s.Observer.Pack(served.Shared)
	}
}

// measured is a response whose status and size are observed as it is sent: some take hours.
type measured struct {
	http.ResponseWriter
	to    ReadingObserver
	kind  string
	begun bool
}

func (m *measured) begin(status int) {
	if !m.begun {
		m.to.Request(m.kind, status)
	}
	m.begun = true
}

func (m *measured) WriteHeader(status int) {
	if status >= 200 { // others come before the answer
		m.begin(status)
	}
	m.ResponseWriter.WriteHeader(status)
}

func (m *measured) Write(b []byte) (int, error) {
	m.begin(http.StatusOK)
	n, err := m.ResponseWriter.Write(b)
	m.to.Sent(m.kind, n)
	return n, err
}

// Unwrap supports [http.ResponseController].
func (m *measured) Unwrap() http.ResponseWriter { return m.ResponseWriter }
