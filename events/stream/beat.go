package stream

import (
	"context"
	"regexp"
	"slices"
	"time"
)

// beat extends the due times of entries in flight and cancels deliveries that lost their entry. It skips
// entries delivered less than a quarter of the visibility ago, so fast handlers never need a heartbeat.
//
// If Redis does not answer, deliveries continue: the script that finishes an entry checks its owner.
func (s *subscription) beat(ctx context.Context) {
	began := time.Now()
	held := make(map[string]*Delivery)
	var ids []string
	for _, d := range s.flight.all() {
		if began.Sub(d.since) >= s.cfg.MaxIdleTime/4 && !d.lost.Load() {
			held[d.entry] = d
			ids = append(ids, d.entry)
		}
	}
	for batch := range slices.Chunk(ids, entriesAtOnce) {
		lost, err := s.group.beat(ctx, batch, s.cfg.MaxIdleTime.Milliseconds())
		if err != nil {
			if !noGroup(err) { // read re-creates the group
				s.outage.failed(ctx, err)
			}
			return
		}
		s.outage.answered(ctx, s.cfg.MaxIdleTime/2) // while a subscription drains, no other call detects the recovery
		for _, id := range lost {
			held[id].lose()
		}
	}
}

// sweep assigns a due time to pending entries that have none, and removes dead consumers. Every eighth sweep
// is thorough.
func (s *subscription) sweep(ctx context.Context) {
	from, total, thorough := "-", int64(0), s.sweeps%8 == 7
	s.sweeps++
	for from != "" && ctx.Err() == nil {
		repaired, next, err := s.group.sweep(ctx, from, s.cfg.MaxIdleTime.Milliseconds(), thorough)
		if err != nil {
			if !noGroup(err) {
				s.outage.failed(ctx, err)
			}
			return
		}
		from, total = next, total+repaired
	}
	if total > 0 {
		s.log.WarnContext(ctx, "repaired pending entries without a due time; each is redelivered unless its consumer "+
			"still has it",
			"stream", s.group.stream, "entries", total)
	}
	s.removeDeadConsumers(ctx)
}

const (
	missingFor  = 7 * 24 * time.Hour // how long a consumer that did not leave stays in the group
	mostMissing = 100                // such consumers that a group keeps
)

// removeDeadConsumers removes consumers that have sent no heartbeat for long and have nothing pending, such as those of
// killed processes. Others keep missing, so that operators see them: for a week, unless this consumer has started on the
// same host since, which a restarted process does and names of [UniqueConsumer] tell. It is safe for live consumers: their
// next heartbeat re-creates them.
func (s *subscription) removeDeadConsumers(ctx context.Context) {
	err := withTimeout(ctx, func(ctx context.Context) error {
		missing, host := 0, hostOf(s.group.consumer)
		all, err := Consumers(ctx, s.group.redis, s.group.stream, s.group.name)
		for _, c := range all {
			replaced := host != "" && hostOf(c.Name) == host && c.Idle > time.Since(s.started)
			dead := c.Idle > 10*s.cfg.MaxIdleTime || replaced && c.Idle > LiveFor
			if err != nil || c.Pending > 0 || !dead {
				continue
			}
			if missing++; replaced || c.Idle > missingFor || missing > mostMissing {
				_, err = RemoveConsumer(ctx, s.group.redis, s.group.stream, s.group.name, c.Name)
			}
		}
		return err
	})
	if err != nil {
		s.log.DebugContext(ctx, "cannot remove dead consumers", "stream", s.group.stream, "error", err)
	}
}

var uniqueName = regexp.MustCompile(`^(.+)-\d+-[^-]+$`)

// hostOf returns the host in the name of a consumer, "" if it is not one of [UniqueConsumer].
func hostOf(consumer string) string {
	if parts := uniqueName.FindStringSubmatch(consumer); parts != nil {
		return parts[1]
	}
	return ""
}

// LiveFor is how long a consumer counts as live after its last heartbeat or read.
const LiveFor = 15 * time.Second

// maxHeartbeat is the longest interval of a consumer's heartbeats. They are part of its reads, so
// that a consumer is not live while its reader hangs or it drains.
const maxHeartbeat = 2 * time.Second

// heartbeatIn returns the time until the consumer's heartbeat is due. It must also precede the removal of
// dead consumers.
func (s *subscription) heartbeatIn() time.Duration {
	return max(0, min(maxHeartbeat, s.cfg.MaxIdleTime/4)-time.Since(s.heard))
}

// touch sends a heartbeat if one is due, by a take of nothing, while there is no room for entries.
func (s *subscription) touch(stop context.Context) {
	if s.heartbeatIn() > 0 {
		return
	}
	if _, _, err := s.take(stop, 0, 0, 0); err != nil {
		s.heard = time.Now() // or a Redis that is away would be called in a loop
		s.recover(stop, err)
	}
}
