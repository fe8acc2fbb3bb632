package volume

import (
	"sync"

	"lockstep/events"
)

// maxSilent is the maximum number of submodules that one sync requests from a host that does not answer.
const maxSilent = 3

// silentHosts limits the requests for submodules to a host that does not answer. The limit also applies to concurrent requests before
// the first answer.
type silentHosts struct {
	mu    sync.Mutex
	ended *sync.Cond // a request has ended
	hosts map[string]*hostRequests
}

// hostRequests counts the requests to a host.
type hostRequests struct {
	running, silent int // requests in flight, and requests without an answer
	answered        bool
}

func newSilentHosts() *silentHosts {
	s := &silentHosts{hosts: map[string]*hostRequests{}}
	s.ended = sync.NewCond(&s.mu)
	return s
}

func (s *silentHosts) of(host string) *hostRequests {
	if s.hosts[host] == nil {
		s.hosts[host] = &hostRequests{}
	}
	return s.hosts[host]
}

// answers records that a host answers.
func (s *silentHosts) answers(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(host).answered = true
}

// do calls fetch, which requests a submodule from the host, unless too many requests to the host were not answered.
func (s *silentHosts) do(host string, fetch func() error) error {
	s.mu.Lock()
	h := s.of(host)
	for !h.answered && h.silent < maxSilent && h.running+h.silent >= maxSilent {
		s.ended.Wait()
	}
	if h.silent >= maxSilent {
		s.mu.Unlock()
		return events.Errorf(events.Retryable, events.ClassNetwork, "%s did not answer for %d other submodules", host, maxSilent)
	}
	h.running++
	s.mu.Unlock()
	err := fetch()
	s.mu.Lock()
	defer s.mu.Unlock()
	h.running--
	switch class := events.ClassOf(err); {
	case err != nil && class == events.ClassNetwork:
		h.silent++
	case err == nil || class != events.ClassLimited:
		h.answered = true
	}
	s.ended.Broadcast()
	return err
}
