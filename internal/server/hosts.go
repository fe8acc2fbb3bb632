package server

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"lockstep/internal/hosts"
)

// Hosts lists the hosts used within a day, which may be a few seconds old. [telemetry.Hosts] implements it.
type Hosts interface {
	List(ctx context.Context) ([]hosts.Host, error)
}

// Host is the limit of requests to a host, as shown by the API and the command line.
type Host struct {
	Host    string `json:"host"`
	Limit   int    `json:"limit"`   // requests that may be in flight
	InUse   int    `json:"in_use"`  // requests in flight
	Waiting int    `json:"waiting"` // repositories in the queue
	Reason  string `json:"reason,omitempty"`
	// end of the block of the host, or of the longest of its credentials
	Until   *time.Time          `json:"until,omitempty"`
	Limited []LimitedCredential `json:"limited_credentials"`
}

// LimitedCredential is a credential that the host limits.
type LimitedCredential struct {
	Credential string    `json:"credential"` // empty for requests without one
	Until      time.Time `json:"until"`
}

// NewHost converts the state of a host.
func NewHost(h hosts.Host) Host {
	shown := Host{
		Host: h.Name, Limit: h.Limit, InUse: h.InUse, Waiting: h.Waiting, Limited: make([]LimitedCredential, len(h.Limited)),
	}
	reason, until := h.Why()
	shown.Reason = string(reason)
	if !until.IsZero() {
		until = wholeSeconds(until)
		shown.Until = &until
	}
	for i, c := range h.Limited {
		shown.Limited[i] = LimitedCredential{c.Name, wholeSeconds(c.Until)}
	}
	return shown
}

// wholeSeconds rounds the end of a block: its conversion from the clock of Redis differs by milliseconds between reads.
func wholeSeconds(t time.Time) time.Time { return t.UTC().Round(time.Second) }

// NewHosts converts the hosts that are in use, limited or waited for.
func NewHosts(all []hosts.Host) []Host {
	shown := []Host{}
	for _, h := range all {
		if !h.Idle() {
			shown = append(shown, NewHost(h))
		}
	}
	return shown
}

// SortHosts sorts blocked hosts first, then those with the most waiters.
func SortHosts(all []Host) {
	blocked := func(h Host) int {
		if h.Until != nil {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b Host) int {
		return cmp.Or(cmp.Compare(blocked(b), blocked(a)), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Host, b.Host))
	})
}

func listHosts(list Hosts) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		all, err := list.List(r.Context())
		if err != nil {
			return nil, err
		}
		return map[string][]Host{"hosts": NewHosts(all)}, nil
	})
}
