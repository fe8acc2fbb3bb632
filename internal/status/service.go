package status

import (
	_ "embed"
	"time"

	"lockstep/internal/feed"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
)

// Service is the state of a running service.
type Service struct {
	Redis  string `json:"redis"`
	Prefix string `json:"prefix"`
	operate.Verdict

	Durability redisx.Durability `json:"durability"` // of Redis; a choice, so it is not a problem

	Changes int64 `json:"changes"` // entries in the stream
	Unread  int64 `json:"unread"`  // not delivered yet; -1 if unknown
	Pending int64 `json:"pending"` // delivered but not settled
	Parked  int64 `json:"parked"`  // pending, and waiting for a moment or for their repository
	Late    int64 `json:"late"`    // pending past their due time
	Workers int   `json:"workers"` // that take changes: live consumers of the workers group
	// without a heartbeat for 15 s; up to 100, until they come back, are replaced or removed, or for a week
	Away    []operate.Worker `json:"workers_away"`
	Results int64            `json:"results"`
	Dead    int64            `json:"dead"`

	OldestMS int64 `json:"oldest_unsettled_ms"` // age of the oldest unsettled change

	Settled       rate             `json:"settled"`
	Groups        []operate.Group  `json:"groups"`
	Activities    []state.Activity `json:"activities"` // work in progress for half a second or more
	Leases        leaseStatus      `json:"leases"`
	Repos         failureStatus    `json:"repositories"`
	DeadReasons   map[string]int   `json:"dead_by_reason"` // in the newest 200
	Notifications int64            `json:"notifications"`  // waiting to be posted
	// repositories whose next notification to an app has failed, of all apps
	FailingBoxes int64           `json:"notifications_failing"`
	FailingApps  []string        `json:"apps_failing"` // some of these apps
	Watched      int64           `json:"watched"`      // repositories
	Unwatched    unwatchedStatus `json:"webhooks_unwatched"`
	Hosts        []hosts.Host    `json:"hosts,omitempty"` // limited or waited for
	Volume       *volumeStatus   `json:"volume,omitempty"`
	Followers    []feed.Follower `json:"followers,omitempty"` // that reported within seven days, the largest lag first

	unasked operate.Unasked
	now     time.Time // Redis time
	local   time.Time // when the hosts were read
}

// rate counts the results of the last OverMS.
type rate struct {
	PerSecond float64 `json:"per_second"`
	Results   int64   `json:"results"`
	OverMS    int64   `json:"over_ms"`
}

// leaseStatus describes the held leases or, if there are too many keys to search, only those of activities.
type leaseStatus struct {
	Complete  bool            `json:"complete"`
	Held      int             `json:"held"`
	Contended []operate.Lease `json:"contended"` // with waiters, longest queue first
}

// failureStatus describes the failing repositories, and what else the search found.
type failureStatus struct {
	Complete bool                  `json:"complete"` // all repositories were searched
	Looked   int                   `json:"looked_at"`
	Failing  int                   `json:"failing"`
	Open     int                   `json:"circuits_open"`
	Refused  []operate.RepoSummary `json:"refused"` // up to 20 with a refused commit, by path
	Missing  []operate.RepoSummary `json:"missing"` // up to 20 with missing files, by path
	// up to 20 with refs that watches select, but that are not kept, by path
	LeftOut  []operate.RepoSummary `json:"left_out"`
	Lacking  int                   `json:"lacking"`  // number of repositories with missing files
	Refusing int                   `json:"refusing"` // number of repositories with a refused commit
	Worst    []operate.RepoSummary `json:"worst"`    // up to 20, most consecutive failures first, then the last failed

	judged []state.Summary // that fail, or have a refused commit
	more   int64           // failing ones that judged lacks
}

// unwatchedStatus describes the webhooks of the last hour, among the last 1,000, whose repository has no watch.
type unwatchedStatus struct {
	Count int      `json:"count"`
	Repos []string `json:"repositories"` // up to 20, most webhooks first
}

type volumeStatus struct {
	ID   string `json:"id"`
	Root string `json:"root,omitempty"` // empty if not mounted, like the sizes below
	Free int64  `json:"free_bytes,omitempty"`
	Size int64  `json:"size_bytes,omitempty"`
}
