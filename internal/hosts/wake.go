package hosts

import (
	"context"
	"maps"
	"time"
)

// woken is a waiter that got a reserved permit.
type woken struct {
	Waiter
	host     string
	next     time.Time // of the next call of Wake
	ends     time.Time // of the reservation, and of the calls
	returned bool      // the reservation was given up
}

// wakeUp calls Config.Wake for the repositories that got a permit, and returns when to do so again.
func (b *Budgets) wakeUp(ctx context.Context) time.Duration {
	var due, left []woken
	b.mu.Lock()
	for _, w := range b.woken {
		if b.now().Before(w.next) {
			left = append(left, w)
		} else {
			due = append(due, w)
		}
	}
	b.woken = nil
	b.mu.Unlock()
	for len(due) > 0 {
		batch := due[:min(len(due), wakeBatch)]
		waiters := make([]Waiter, len(batch))
		for i, w := range batch {
			waiters[i] = w.Waiter
		}
		found, err := b.cfg.Wake(ctx, waiters)
		if err != nil {
			if ctx.Err() == nil {
				b.cfg.Log.WarnContext(ctx, "waiting repositories not woken, will retry", "error", err, "repos", len(due))
			}
			left = append(left, due...)
			break
		}
		for i, w := range batch {
			if i < len(found) && !found[i] && b.now().Before(w.ends) {
				left = append(left, b.notFound(w))
			}
		}
		due = due[len(batch):]
	}
	b.mu.Lock()
	b.woken = append(left, b.woken...)
	b.woken = b.woken[:min(len(b.woken), maxWoken)]
	wait := idleEvery
	for _, w := range b.woken {
		wait = min(wait, w.next.Sub(b.now()))
	}
	b.mu.Unlock()
	if len(left) > 0 {
		_ = b.sendQueue(ctx) // pump repeats it
	}
	return max(wait, pumpEvery)
}

// notFound gives up the reservation of a waiter without a parked change, and returns when to look for one again. A change
// that appears later asks for a permit again, and goes before others if its repository was served less recently.
func (b *Budgets) notFound(w woken) woken {
	w.next = b.now().Add(wakeAgain)
	if !w.returned {
		b.mu.Lock()
		b.noteLocked(w.host, w.Waiter, "")
		b.mu.Unlock()
		w.next, w.returned = b.now().Add(pumpEvery), true
	}
	return w
}

// place is where repositories wait.
type place struct{ host, credential string }

// queueLocked lets Run queue the repository of a request soon.
func (b *Budgets) queueLocked(req Request) {
	b.noteLocked(req.Host, Waiter{req.Credential, req.Repo.Key()}, req.Kind)
	b.waiting = true
	b.signal()
}

// noteLocked notes a repository to be queued. With an empty kind, its reservation is given up instead.
func (b *Budgets) noteLocked(host string, w Waiter, kind Kind) {
	at := place{host, w.Credential}
	old, known := b.queue[at][w.Key]
	switch {
	case known && (kind == "" || old == Push), len(b.queue[at]) >= maxWoken:
		return
	case b.queue[at] == nil:
		b.queue[at] = map[string]Kind{}
	}
	b.queue[at][w.Key] = kind
}

// sendQueue sends the recorded changes of the queue to Redis.
func (b *Budgets) sendQueue(ctx context.Context) error {
	b.mu.Lock()
	queue := b.queue
	b.queue = map[place]map[string]Kind{}
	b.mu.Unlock()
	var failed error
	for at, repos := range queue {
		for len(repos) > 0 && failed == nil {
			var args []any
			var sent []string
			for repo, kind := range repos {
				if len(sent) == wakeBatch {
					break
				}
				args, sent = append(args, string(kind), repo), append(sent, repo)
			}
			if _, failed = b.call(ctx, pumpScript, at.host, at.credential, args...); failed != nil {
				break
			}
			for _, repo := range sent {
				delete(repos, repo)
			}
		}
	}
	if failed != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		for at, repos := range queue {
			if newer := b.queue[at]; newer != nil {
				maps.Copy(repos, newer)
			}
			b.queue[at] = repos
		}
	}
	return failed
}
