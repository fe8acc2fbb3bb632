package locking

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const listenIdle = 10 * time.Second // a subscription without an answer for twice as long is replaced

// listen receives hand-over messages until ctx is done.
func (l *Locker) listen(ctx context.Context) {
	for pause := retryPause; ctx.Err() == nil; pause = sleep(ctx, pause) {
		begun := time.Now()
		subscription := l.cfg.PubSub.Subscribe(ctx, l.channel)
		unhook := context.AfterFunc(ctx, func() { _ = subscription.Close() }) // the only way to interrupt a read
		l.hear(ctx, subscription)
		unhook()
		_ = subscription.Close()
		if time.Since(begun) > maxPause {
			pause = retryPause
		}
	}
}

// hear receives messages until the subscription fails. It pings an idle Redis, which also keeps contact steady.
func (l *Locker) hear(ctx context.Context, subscription *redis.PubSub) {
	idle := min(max(l.cfg.Lease/4, minGap/2), listenIdle)
	for asked, heard := false, time.Now(); ; {
		message, err := subscription.ReceiveTimeout(ctx, idle)
		now := time.Now()
		var network net.Error
		switch silent := errors.As(err, &network) && network.Timeout(); {
		case silent && !asked:
			err = subscription.Ping(ctx)
			asked = true
		case silent && now.Sub(heard) < 2*listenIdle:
			err = nil
		case err == nil:
			asked, heard = false, now
			l.contact.note(now, 0)
		}
		if err != nil {
			return
		}
		switch m := message.(type) {
		case *redis.Message:
			l.wake(m.Payload)
		case *redis.Subscription:
			l.pokeAll() // messages sent while disconnected are lost
		}
	}
}

// wake passes a grant to its ticket. If no ticket waits for it any more, because the request timed out before
// Redis ran it, the grant is released immediately.
func (l *Locker) wake(payload string) {
	if token, forced := strings.CutPrefix(payload, forcedMark); forced {
		l.revoke(token)
		return
	}
	if token, wanted := strings.CutPrefix(payload, wantedMark); wanted {
		l.noteWanted(token)
		return
	}
	part := strings.SplitN(payload, " ", 5)
	if len(part) != 5 {
		return
	}
	token, key := part[0], strings.TrimPrefix(part[4], l.cfg.Prefix)
	grant := answer{
		verdict: granted,
		since:   parseMicros(part[1]), fence: uint64(parseMicros(part[2])), expires: parseMicros(part[3]),
	}

	l.mu.Lock()
	ticket, waits := l.tickets[token]
	_, known := l.leases[token]
	l.mu.Unlock()
	switch {
	case waits:
		l.onHandOver(ticket, grant)
	case !known:
		l.work.Go(func() { _, _ = l.callRelease(l.ctx, key, token, nil) })
	}
}

// forcedMark starts the message of force.lua; the token of the lease follows.
const forcedMark = "! "

// wantedMark starts the message of queue.lua to the holder of a lease that yields; the token of the lease follows.
const wantedMark = "? "

// noteWanted records that a request of another process waits. If the message is lost, the holder is not notified.
func (l *Locker) noteWanted(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease, known := l.leases[token]; known {
		lease.want()
	} else if ticket, waits := l.tickets[token]; waits { // the reply with the grant is under way
		ticket.wanted = true
	}
}

// revoke ends a lease that was released by force. If the message is lost, the next renewal notices.
func (l *Locker) revoke(token string) {
	l.mu.Lock()
	lease, known := l.leases[token]
	l.mu.Unlock()
	if known {
		l.noteLost(lease, true)
	}
}

func (l *Locker) pokeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.tickets {
		t.poke()
	}
}
