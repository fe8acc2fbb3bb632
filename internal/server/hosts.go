package server

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"lockstep/internal/hosts"
)

// Hosts lists the hosts and credentials used within a day, which may be a few seconds old. [telemetry.Hosts]
// implements it.
type Hosts interface {
	List(ctx context.Context) ([]hosts.Status, error)
}

// Host says who waits for a host, as shown by the API and the command line.
type Host struct {
	Host    string              `json:"host"`
	Waiting int                 `json:"waiting"` // repositories
	Reason  string              `json:"reason,omitempty"`
	Until   *time.Time          `json:"until,omitempty"` // end of the longest block of its credentials
	Limited []LimitedCredential `json:"limited_credentials"`
}

// LimitedCredential is a credential whose requests the host does not answer, or limits.
type LimitedCredential struct {
	Credential string    `json:"credential"` // empty for requests without one
	Until      time.Time `json:"until"`
}

// NewHosts returns the hosts of credentials that are sorted by host.
func NewHosts(all []hosts.Status) []Host {
	shown := []Host{}
	for _, s := range all {
		if n := len(shown); n == 0 || shown[n-1].Host != s.Host {
			shown = append(shown, Host{Host: s.Host, Limited: []LimitedCredential{}})
		}
		h := &shown[len(shown)-1]
		h.Waiting += s.Waiting
		if s.Until.IsZero() {
			h.Reason = cmp.Or(h.Reason, string(s.Reason))
			continue
		}
		// its conversion from the clock of Redis differs by milliseconds between reads
		until := s.Until.UTC().Round(time.Second)
		h.Limited = append(h.Limited, LimitedCredential{s.Credential, until})
		if h.Until == nil || until.After(*h.Until) {
			h.Reason, h.Until = string(s.Reason), &until
		}
	}
	return shown
}

// BusyHosts returns the hosts that somebody waits for, or that are limited, blocked ones first, then those
// with the most waiters.
func BusyHosts(all []hosts.Status) []Host {
	shown := slices.DeleteFunc(NewHosts(all), func(h Host) bool { return h.Waiting == 0 && h.Reason == "" })
	SortHosts(shown)
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
