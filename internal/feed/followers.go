package feed

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

// Report is the report of a follower, a program that uses the stream of results to keep copies of repositories.
type Report struct {
	Cursor  string `json:"cursor"`            // the last one that it has applied
	Repos   int    `json:"repos"`             // that it keeps
	Behind  int    `json:"behind"`            // of these, whose copies are not up to date
	Version string `json:"version,omitempty"` // of the program
}

// Follower is a follower and its last report.
type Follower struct {
	Name string `json:"name"`
	App  string `json:"app,omitempty"` // empty for the operator's
	Report
	Seen time.Time `json:"seen"` // when it reported
	// age of the oldest result after its cursor; 0 if there is none, -1 if the cursor is gone
	LagMS int64         `json:"lag_ms"`
	State FollowerState `json:"state"`
	Entry string        `json:"-"` // of its cursor in the results of the cell; "" if there is none
}

// FollowerState says whether a follower needs attention.
type FollowerState string

// States of followers. The first that applies counts.
const (
	FollowerRevoked FollowerState = "revoked"    // the token of its last report was removed
	FollowerAway    FollowerState = "away"       // no report for a minute
	FollowerFirst   FollowerState = "first copy" // nothing is complete yet
	FollowerAnew    FollowerState = "lists anew" // the results after its cursor are no longer kept
	FollowerBehind  FollowerState = "behind"     // copies are not up to date, or a result has waited for a minute
	FollowerOK      FollowerState = "ok"
)

const (
	awayAfter   = time.Minute
	behindAfter = time.Minute
)

// stateAt returns the state of a follower whose token was not removed.
func (f Follower) stateAt(now time.Time) FollowerState {
	switch {
	case now.Sub(f.Seen) > awayAfter:
		return FollowerAway
	case f.Cursor == "":
		return FollowerFirst
	case f.LagMS < 0:
		return FollowerAnew
	case f.Behind > 0 || f.LagMS > behindAfter.Milliseconds():
		return FollowerBehind
	}
	return FollowerOK
}

// Followers stores the reports of followers in Redis, and compares them with the results of a cell. A report
// is kept for seven days. It is safe for concurrent use by any number of processes.
type Followers struct {
	redis   redis.Cmdable
	cell    string
	results string // stream of the cell's results
	shared  events.Namespace
	max     int
	keep    time.Duration
}

// NewFollowers returns the followers of a cell, "" for a deployment without cells, whose keys have the
// namespace. The reports and the tokens of followers are below shared: the same, or the namespace of the
// directory if there are cells.
func NewFollowers(client redis.Cmdable, cell string, namespace, shared events.Namespace) *Followers {
	return &Followers{
		redis: client, cell: cell, results: namespace.Results(), shared: shared, max: 1000, keep: 7 * 24 * time.Hour,
	}
}

var (
	//go:embed report.lua
	reportSource string
	reportScript = redis.NewScript(reportSource)

	//go:embed next.lua
	nextSource string
	nextScript = redis.NewScript(nextSource)

	followerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	versionText  = regexp.MustCompile(`^[ -~]{0,100}$`)
)

// Errors of [Followers.Put].
var (
	ErrBadReport        = errors.New("invalid report")
	ErrTooManyFollowers = errors.New("this app has 1,000 followers already; followers are forgotten seven days after " +
		"their last report")
)

const (
	maxReported        = 8 << 10 // bytes of a cursor; each cell has 60 to 150
	maxFollowersListed = 5000
	followersAtOnce    = 200 // compared with the results in one call
)

func (f *Followers) apps() string { return string(f.shared) + "followers" }

func (f *Followers) of(app string) string { return f.apps() + ":of:" + app }

func (f *Followers) seen(app string) string { return f.apps() + ":seen:" + app }

// Put stores the report of a follower of an app, "" for the operator, sent with the token that has the given
// hash, "" for the operator's. It returns [ErrBadReport], [ErrTooManyFollowers], or an error of Redis.
func (f *Followers) Put(ctx context.Context, app, name, token string, report Report) error {
	if !followerName.MatchString(name) {
		return fmt.Errorf("%w: name: want at most 100 letters, digits, dots, underscores or hyphens", ErrBadReport)
	}
	const most = 1 << 30
	_, err := parseCursor(report.Cursor)
	switch {
	case report.Cursor != "" && err != nil:
		return fmt.Errorf("%w: %w", ErrBadReport, err)
	case len(report.Cursor) > maxReported:
		return fmt.Errorf("%w: cursor: want at most %d bytes", ErrBadReport, maxReported)
	case min(report.Repos, report.Behind) < 0, max(report.Repos, report.Behind) > most:
		return fmt.Errorf("%w: repos, behind: want numbers of repositories", ErrBadReport)
	case !versionText.MatchString(report.Version):
		return fmt.Errorf("%w: version: want at most 100 printable ASCII characters", ErrBadReport)
	}
	document, err := json.Marshal(report)
	if err != nil {
		return err
	}
	stored, err := reportScript.Run(ctx, f.redis, []string{f.of(app), f.apps(), f.seen(app)},
		app, name, cmp.Or(token, "-"), document, f.max, f.keep.Milliseconds()).Bool()
	if err != nil {
		return fmt.Errorf("store the report of a follower: %w", err)
	}
	if !stored {
		return ErrTooManyFollowers
	}
	return nil
}

// List returns the followers, at most 5,000: those that need attention first, then those whose token was
// removed, each with the largest lag first.
func (f *Followers) List(ctx context.Context) ([]Follower, error) {
	list, err := f.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list followers: %w", err)
	}
	if err := f.setLags(ctx, list); err != nil {
		return nil, fmt.Errorf("list followers: %w", err)
	}
	rank := map[FollowerState]int{FollowerRevoked: 1, FollowerOK: 2}
	lag := func(one Follower) int64 {
		if one.LagMS < 0 {
			return 1 << 62
		}
		return one.LagMS
	}
	slices.SortFunc(list, func(a, b Follower) int {
		return cmp.Or(cmp.Compare(rank[a.State], rank[b.State]), cmp.Compare(lag(b), lag(a)),
			cmp.Compare(b.Behind, a.Behind), strings.Compare(a.App, b.App), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

// list returns the followers without their lags, and only the state of those whose token was removed.
func (f *Followers) list(ctx context.Context) ([]Follower, error) {
	apps, err := f.redis.ZRevRange(ctx, f.apps(), 0, maxFollowersListed-1).Result()
	if err != nil || len(apps) == 0 {
		return nil, err
	}
	now, err := stream.Time(ctx, f.redis, f.apps())
	if err != nil {
		return nil, err
	}
	var list []Follower
	for _, app := range apps {
		reports, err := f.redis.HGetAll(ctx, f.of(app)).Result()
		if err != nil {
			return nil, err
		}
		removed, err := f.removedTokens(ctx, reports)
		if err != nil {
			return nil, err
		}
		for name, text := range reports {
			one, token, ok := parseReport(text)
			one.Name, one.App = name, app
			if !ok || now.Sub(one.Seen) > f.keep || !f.isOfCell(one) {
				continue
			}
			if removed[token] {
				one.State = FollowerRevoked
			}
			list = append(list, one)
		}
		if len(list) >= maxFollowersListed {
			return list[:maxFollowersListed], nil
		}
	}
	return list, nil
}

// isOfCell reports whether a follower gets the results of the cell, or may get them once it has a cursor of
// these cells.
func (f *Followers) isOfCell(one Follower) bool {
	cursor, err := parseCursor(one.Cursor)
	_, known := cursor[f.cell]
	return err != nil || known
}

// parseReport parses what report.lua stores.
func parseReport(text string) (one Follower, token string, ok bool) {
	parts := strings.SplitN(text, " ", 3)
	if len(parts) != 3 {
		return Follower{}, "", false
	}
	ms, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil || json.Unmarshal([]byte(parts[2]), &one.Report) != nil {
		return Follower{}, "", false
	}
	one.Seen = time.UnixMilli(ms).UTC()
	return one, parts[1], true
}

// removedTokens returns the tokens of reports that were removed.
func (f *Followers) removedTokens(ctx context.Context, reports map[string]string) (map[string]bool, error) {
	var hashes []string
	for _, text := range reports {
		if _, token, ok := parseReport(text); ok && token != "-" && !slices.Contains(hashes, token) {
			hashes = append(hashes, token)
		}
	}
	removed := map[string]bool{}
	if len(hashes) == 0 {
		return removed, nil
	}
	records, err := f.redis.HMGet(ctx, f.shared.Tokens(), hashes...).Result()
	if err != nil {
		return nil, err
	}
	for i, record := range records {
		removed[hashes[i]] = record == nil
	}
	return removed, nil
}

// setLags compares the cursors with the stream of results.
func (f *Followers) setLags(ctx context.Context, list []Follower) error {
	if len(list) == 0 {
		return nil
	}
	epoch, err := f.redis.Get(ctx, f.results+":epoch").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	now, err := stream.Time(ctx, f.redis, f.results)
	if err != nil {
		return err
	}
	after := map[entryID][]int{} // followers whose cursors are in the stream, by their entries
	for i := range list {
		cursor, err := parseCursor(list[i].Cursor)
		list[i].Entry, list[i].LagMS = cursor.Entry(f.cell), -1
		at := cursor[f.cell]
		if err == nil && at.epoch == epoch && epoch != "" && at.entry != lastEntry {
			after[at.entry] = append(after[at.entry], i)
		}
	}
	for entries := range slices.Chunk(slices.SortedFunc(maps.Keys(after), entryID.compare), followersAtOnce) {
		ids := make([]any, len(entries))
		for n, entry := range entries {
			ids[n] = entry.String()
		}
		next, err := nextScript.Run(ctx, f.redis, []string{f.results}, ids...).StringSlice()
		if err != nil {
			return err
		}
		for n, entry := range entries {
			for _, i := range after[entry] {
				list[i].LagMS = 0
				if n < len(next) && next[n] != "" {
					list[i].LagMS = max(0, now.Sub(events.EntryTime(next[n])).Milliseconds())
				}
			}
		}
	}
	for i := range list {
		list[i].State = cmp.Or(list[i].State, list[i].stateAt(now))
	}
	return nil
}

// lastEntry is the largest ID. Redis refuses to read after it, and no entry has it.
var lastEntry = entryID{math.MaxUint64, math.MaxUint64}
