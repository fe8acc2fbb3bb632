package follow

import (
	"context"
	"time"
)

// keepFirst writes the first position of a new follower, from which on no purge is missed. Earlier
// publications are compared at each start.
func (f *Follower) keepFirst(ctx context.Context, cursor string) {
	if f.cfg.Record.Cursor() != "" || f.cfg.Record.Deepened() {
		return
	}
	if err := f.cfg.Record.SetCursor(cursor); err != nil {
		f.cfg.Log.WarnContext(ctx, "position cannot be stored; the next start compares everything again", "error", err)
	}
}

// keep writes the position to the volume.
func (f *Follower) keep(ctx context.Context) {
	if f.position.cursor == "" || !f.Status().CaughtUp || f.cfg.Record.Deepened() && len(f.position.open) > 0 {
		return
	}
	if err := f.cfg.Record.SetCursor(f.position.cursor); err != nil {
		f.cfg.Log.WarnContext(ctx, "position cannot be stored; the next start resumes from an earlier one", "error", err)
	}
}

// update updates the status.
func (f *Follower) update(ctx context.Context) {
	if f.listed > 0 && f.listTry == 0 && !f.restart && len(f.compared) == 0 {
		f.position.advance()
	}
	caughtUp, hasFirst := false, f.hasFirst()
	f.setStatus(func(s *Status) {
		s.Behind, s.Cursor = len(f.position.open)+f.cfg.Pending(), f.position.cursor
		if f.restart || len(f.compared) > 0 { // how many are behind is not known yet
			s.Behind = max(s.Behind, 1)
		}
		if !s.CaughtUp && hasFirst {
			s.CaughtUp, caughtUp = true, true
		}
		if s.Connected && s.CaughtUp && s.Behind == 0 {
			s.Level = time.Now()
		}
	})
	if caughtUp {
		status := f.Status()
		f.cfg.Log.InfoContext(ctx, "caught up with the reader", "repos", status.Repos, "behind", status.Behind)
	}
}

// hasFirst reports whether the repositories of the first list are settled.
func (f *Follower) hasFirst() bool {
	if len(f.compared) > 0 {
		return false
	}
	for _, j := range f.jobs {
		if j.number <= f.listed {
			return false
		}
	}
	return f.listed > 0
}
