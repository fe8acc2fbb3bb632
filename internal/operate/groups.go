package operate

import "lockstep/events/stream"

// Group is a consumer group of a stream. See [stream.GroupStatistics].
type Group struct {
	Stream    string `json:"stream"`
	Group     string `json:"group"`
	Lag       int64  `json:"lag"` // entries not read yet; -1 if unknown
	Pending   int64  `json:"pending"`
	Parked    int64  `json:"parked"`
	Due       int64  `json:"due"`
	Late      int64  `json:"late"`
	Consumers int    `json:"consumers"`
	Live      int    `json:"live"`                       // consumers with a heartbeat or read within stream.LiveFor
	OldestMS  int64  `json:"oldest_unsettled_ms"`        // age of the oldest unsettled entry
	Oldest    string `json:"oldest_unsettled,omitempty"` // that entry
}

// GroupsOf returns the groups of streams.
func GroupsOf(streams ...stream.Statistics) []Group {
	groups := []Group{}
	for _, s := range streams {
		for _, g := range s.Groups {
			groups = append(groups, Group{s.Stream, g.Name, g.Lag, g.Pending, g.Parked, g.Due, g.Late, g.Consumers, g.Live,
				g.Oldest.Milliseconds(), g.OldestEntry})
		}
	}
	return groups
}
