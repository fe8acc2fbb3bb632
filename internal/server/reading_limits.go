package server

import (
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	stallTimeout = time.Minute // how long a client may take to accept a buffer of a response
	minRate      = 64 << 10    // bytes that it must accept per second, beyond that minute
)

// patient is a response that may take long, as long as the client keeps reading: it holds a tree in place.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	sent    int64
	waited  time.Duration // for the client
}

func newPatient(w http.ResponseWriter) *patient {
	return &patient{ResponseWriter: w, control: http.NewResponseController(w)}
}

// Write postpones the deadline of the response.
func (p *patient) Write(b []byte) (int, error) {
	begin := time.Now()
	_ = p.control.SetWriteDeadline(begin.Add(patience(p.sent, p.waited))) // not supported in tests without a connection
	n, err := p.ResponseWriter.Write(b)
	p.waited += time.Since(begin)
	p.sent += int64(n)
	return n, err
}

// Unwrap supports [http.ResponseController].
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// FlushError postpones the deadline of the response, too.
func (p *patient) FlushError() error {
	_ = p.control.SetWriteDeadline(time.Now().Add(patience(p.sent, p.waited)))
	return p.control.Flush()
}

// patience returns how much longer to wait for a client, given the time that it took to accept a number of bytes.
func patience(sent int64, waited time.Duration) time.Duration {
	return min(stallTimeout, stallTimeout+time.Duration(sent/minRate)*time.Second-waited)
}

// slots limits how many requests are answered, or archives are sent, at once, in all and for each app.
type slots struct {
	mu    sync.Mutex
	total int
	by    map[string]int
}

const (
	maxArchives    = 16 // each needs about 5 MB
	maxArchivesApp = 4

	maxRequests    = 256 // each may hold a tree in place, with three open files
	maxRequestsApp = 64

	maxLists    = 16 // each scans up to 10,000 repositories in Redis, or 1,000 results
	maxListsApp = 4

	maxStreams = 5000 // each takes some 40 KB
)

var (
	errBusyArchives = busy("this process makes %d archives already, or %d for this app; try again, or ask another process",
		maxArchives, maxArchivesApp)
	errBusy = busy("this process has %d requests already, or %d of this app; try again, or ask another process",
		maxRequests, maxRequestsApp)
	errBusyLists = busy("this process reads %d lists of repositories already, or %d for this app; try again, or ask "+
		"another process", maxLists, maxListsApp)
	errBusyStreams = busy("this process has as many streams of results as it allows, or half of them are of this app; " +
		"close some, or ask another process")
)

func busy(format string, args ...any) error {
	return problem{fmt.Errorf(format, args...), http.StatusTooManyRequests}
}

// mostStreams returns how many streams of results this process may have, unless it is configured: 5,000, or three
// quarters of the limit of open files if that is less.
func mostStreams() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return maxStreams
	}
	return int(min(maxStreams, limit.Cur/4*3))
}

// take takes a slot for an app, or returns busy. Call release when done.
func (s *slots) take(app string, most, mostApp int, busy error) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= most || s.by[app] >= mostApp {
		return nil, busy
	}
	if s.by == nil {
		s.by = map[string]int{}
	}
	s.total++
	s.by[app]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		if s.by[app]--; s.by[app] == 0 {
			delete(s.by, app)
		}
	}, nil
}
