package telemetry

import "lockstep/events/stream"

// Demand is the work of a consumer group. Each entry counts once.
type Demand struct {
	Ready   int64 // can be handled now, and no consumer has them; 1 or more, if Redis cannot tell how many are unread
	Running int64 // with a consumer, which handles them, or has them wait for a slot or a lease
	Parked  int64 // wait for a retry, a host, or other entries of their key: more consumers would not help
}

// DemandOf returns the work of the group called name. Every entry is ready if the group does not exist yet.
func DemandOf(s stream.Statistics, name string) Demand {
	g, ok := s.Group(name)
	if !ok {
		return Demand{Ready: s.Length}
	}
	unread := g.Lag
	if unread < 0 {
		unread = 1
	}
	due := min(g.Late, g.Parked) // the other late ones are those of a consumer that died, and count as running
	return Demand{Ready: unread + due, Running: max(0, g.Pending-g.Parked), Parked: g.Parked - due}
}

// Consumers returns how many consumers the work needs if each handles a number of entries at once; 0 if there is none.
func (d Demand) Consumers(slots int) int64 {
	n := int64(max(slots, 1))
	return (d.Ready + d.Running + n - 1) / n
}
