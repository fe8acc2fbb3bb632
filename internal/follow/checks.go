package follow

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"lockstep/events"
)

// check is a repository to compare again.
type check struct {
	repo  events.RepoPath
	at    time.Time
	tries int
}

const (
	firstCheck = 5 * time.Second
	lastCheck  = 10 * time.Minute
)

// settle records a result of the worker.
func (f *Follower) settle(result events.Result) {
	id := strings.Join(result.Deliveries, "")
	j, ok := f.jobs[id]
	if !ok {
		return
	}
	delete(f.jobs, id)
	switch {
	case result.Type == events.ResultFailed:
		f.checkLater(j.repo)
		if !j.to.IsZero() {
			f.retry(j.to)
		}
	case !j.to.IsZero():
		f.position.settled(j.key, j.number)
		f.position.ask(keyOf(j.to, events.Ref{}))
		f.checkSoon(j.to)
	default:
		f.position.settled(j.key, j.number)
	}
}

// retry compares a repository later. Until then, the cursor does not advance past it.
func (f *Follower) retry(repo events.RepoPath) {
	f.position.ask(keyOf(repo, events.Ref{}))
	f.checkLater(repo)
}

// checkLater schedules another comparison of a repository, with a backoff that grows with each failure.
func (f *Follower) checkLater(repo events.RepoPath) {
	c := f.checks[repo.Key()]
	if c == nil {
		c = &check{repo: repo}
		f.checks[repo.Key()] = c
	}
	c.later()
}

// later postpones a check.
func (c *check) later() {
	pause := min(firstCheck<<min(c.tries, 10), lastCheck)
	c.at, c.tries = time.Now().Add(pause/2+rand.N(pause/2)), c.tries+1
}

func (f *Follower) checkSoon(repo events.RepoPath) {
	f.checks[repo.Key()] = &check{repo: repo}
}

// due runs the work that is due while the reader is connected.
func (f *Follower) due(ctx context.Context) {
	if !f.Status().Connected {
		return
	}
	now := time.Now()
	if !f.listing && !f.listAt.IsZero() && now.After(f.listAt) {
		f.list(ctx, f.all || f.listed == 0 || now.Sub(f.comparedAt) > f.cfg.CompareEvery)
	}
	for key, c := range f.checks {
		switch {
		case now.Before(c.at) || ctx.Err() != nil:
		case !f.isOpen(c.repo):
			delete(f.checks, key)
		default:
			c.at = now.Add(lastCheck) // sooner if it fails
			f.compare(ctx, c.repo)
		}
	}
}

// isOpen reports whether a repository has an open request.
func (f *Follower) isOpen(repo events.RepoPath) bool {
	for key := range f.position.open {
		if strings.HasPrefix(key, repo.Key()+" ") {
			return true
		}
	}
	return false
}
