package dashboard

import (
	"context"
	"sync"
	"time"

	"lockstep/internal/feed"
)

// Followers lists the programs that follow the results. [feed.Followers] implements it.
type Followers interface {
	List(ctx context.Context) ([]feed.Follower, error)
}

const (
	followersShown = 30
	followersKept  = 5 * time.Second // how long a list is reused: followers report every ten seconds
)

// followerLine is a follower as shown.
type followerLine struct {
	feed.Follower
	Lag     time.Duration // negative if unknown
	Differs bool          // its version is another one than this process's
}

// Badge returns the style of the state.
func (l followerLine) Badge() string {
	switch l.State {
	case feed.FollowerOK:
		return "ok"
	case feed.FollowerAway, feed.FollowerRevoked:
		return "bad"
	}
	return "warn"
}

// sharedFollowers reuses a list of followers. It is safe for concurrent use.
type sharedFollowers struct {
	list Followers

	mu   sync.Mutex
	last []feed.Follower
	at   time.Time
}

// read returns the followers; none if Config.Followers is nil.
func (s *sharedFollowers) read(ctx context.Context) ([]feed.Follower, error) {
	if s.list == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) < followersKept {
		return s.last, nil
	}
	list, err := s.list.List(ctx)
	if err != nil {
		return nil, err
	}
	s.last, s.at = list, time.Now()
	return list, nil
}

// followers returns the lines of the overview, and the number of omitted ones.
func (d *Dashboard) followersShown(ctx context.Context) (lines []followerLine, more int, err error) {
	all, err := d.followers.read(ctx)
	if err != nil {
		return nil, 0, err
	}
	shown, more := first(followersShown, all)
	for _, one := range shown {
		other := one.Version != "" && one.Version != d.cfg.Version
		lines = append(lines, followerLine{one, time.Duration(one.LagMS) * time.Millisecond, other})
	}
	return lines, more, nil
}
