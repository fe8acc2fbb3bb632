package dashboard

import (
	"context"
	"time"

	"lockstep/internal/feed"
)

const (
	followersShown = 30
	followersKept  = 5 * time.Second // how long a list is reused: followers report every ten seconds
	followersWait  = 10 * time.Second
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

// followersShown returns the lines of the overview, and the number of omitted ones.
func (d *Dashboard) followersShown(ctx context.Context) (lines []followerLine, more int, err error) {
	if d.cfg.Followers == nil {
		return nil, 0, nil
	}
	all, err := d.followers.Get(ctx, d.cfg.Followers)
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
