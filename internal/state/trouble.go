package state

import (
	"cmp"
	"context"
	_ "embed" // the script
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

//go:embed held.lua
var heldSource string

var heldScript = redis.NewScript(heldSource)

// Trouble is the last error of a scope, until a success disproves it. There is one per scope of a repository: one
// for the repository, one for each app's credential, one for each credential at the host, and one for each app and ref
// whose changes fail for reasons of their own.
type Trouble struct {
	Scope events.Scope `json:"scope,omitempty"` // the change's if omitted
	// App is empty for a poll for all apps, and for changes requested without an app; Ref for the default branch,
	// and for a poll.
	App       string       `json:"app"`
	Ref       string       `json:"ref"`
	Operation string       `json:"operation"` // sync, remove, move or poll
	Class     events.Class `json:"class"`
	// Error is one line of at most 300 bytes. It names hosts and credentials, but contains no secret.
	Error    string     `json:"error,omitempty"`
	Failures int        `json:"failures,omitempty"` // of the scope, in a row
	Attempts int        `json:"attempts,omitempty"` // at the change
	Job      string     `json:"job"`                // ID of the change
	At       time.Time  `json:"at"`                 // by Redis' clock, like the following
	Since    time.Time  `json:"since,omitzero"`     // of the first of the failures in a row
	Next     *time.Time `json:"next,omitempty"`     // next attempt at the change; nil if it was given up
	Until    *time.Time `json:"until,omitempty"`    // what needs the scope waits until then; nil if it need not

	Credential string `json:"credential,omitempty"` // name of the change's credential
	Watched    bool   `json:"watched,omitempty"`    // a watch requested the change
}

// troubles is the value of [TroubleField].
type troubles struct {
	Repo string             `json:"repo"` // in its original case
	All  map[string]Trouble `json:"all"`
}

const (
	// TroubleField is the field of the state with the troubles of the repository.
	TroubleField = "trouble"

	// CircuitFailures is the number of failures in a row that open the circuit of a repository.
	CircuitFailures = 5

	maxTroubles    = 16  // of changes; older ones are dropped
	maxTroubleText = 300 // bytes
	maxTroubleAge  = 30 * 24 * time.Hour
)

// key returns the name of a trouble's scope.
func (t Trouble) key() string {
	switch {
	case t.Scope == events.ScopeCredential:
		return "credential:" + t.Credential + ":" + t.App
	case t.Scope == events.ScopeHostCredential:
		return "host_credential:" + t.Credential
	case t.Scope != events.ScopeChange:
		return string(t.Scope)
	case t.IsOfPoll():
		return "poll:" + t.App
	}
	return "change:" + t.Ref + ":" + t.App
}

// IsOfPoll reports whether a poll failed.
func (t Trouble) IsOfPoll() bool { return t.Operation == events.ChangeDue.Operation() }

func (r Repo) troubles() (found troubles) {
	if json.Unmarshal([]byte(r.fields[TroubleField]), &found) != nil || found.All == nil {
		found.All = map[string]Trouble{}
	}
	return found
}

// InARow returns t as the last of the failures of its scope in a row.
func (r Repo) InARow(t Trouble) Trouble {
	before, again := r.troubles().All[t.key()]
	t.Failures, t.Since = before.Failures+1, t.At
	if again {
		t.Since = before.Since
	}
	return t
}

// Waits returns the trouble until whose end a change must wait, or false.
func (r Repo) Waits(change events.Change, now time.Time) (longest Trouble, ok bool) {
	for _, t := range r.troubles().All {
		needs := t.Scope == events.ScopeRepo
		if t.Scope == events.ScopeCredential && change.Type == events.ChangePushed {
			needs = t.App == change.App && t.Credential == change.Credential
		}
		if needs && t.Until != nil && t.Until.After(now) && (!ok || t.Until.After(*longest.Until)) {
			longest, ok = t, true
		}
	}
	return longest, ok
}

// LoadTroubles returns the part of repo's state with its troubles, and whether it is in this cell.
func (s *Store) LoadTroubles(ctx context.Context, repo events.RepoPath) (Repo, error) {
	values, err := s.redis.HMGet(ctx, s.namespace.Repo(repo), TroubleField, cellField).Result()
	if err != nil {
		return Repo{}, fmt.Errorf("load the troubles of %s: %w", repo, err)
	}
	known := Repo{fields: map[string]string{}}
	known.fields[TroubleField], _ = values[0].(string)
	known.fields[cellField], _ = values[1].(string)
	return known, nil
}

// HasGiven reports whether anything of the current clone was delivered to app.
func (r Repo) HasGiven(app string) bool {
	for name := range r.fields {
		if rest, ok := strings.CutPrefix(name, "given:"); ok {
			if _, to, _ := strings.Cut(rest, ":"); to == app { // a ref contains no colon
				return true
			}
		}
	}
	return false
}

// Record stores a trouble of repo in known and in Redis, under the lease with the given fence. If a newer lease on
// repo has been granted, Record changes nothing in Redis and returns no error.
func (s *Store) Record(ctx context.Context, known Repo, repo events.RepoPath, fence uint64, t Trouble) error {
	t.Error, t.Job = clip(t.Error, maxTroubleText), clip(t.Job, maxTroubleText)
	found := known.troubles()
	found.Repo, found.All[t.key()] = repo.String(), t
	var changes []Trouble
	for _, other := range found.All {
		if other.Scope == events.ScopeChange {
			changes = append(changes, other)
		}
	}
	slices.SortFunc(changes, newestFirst)
	for _, other := range changes[min(maxTroubles, len(changes)):] {
		delete(found.All, other.key())
	}
	known.setTroubles(found)
	err := s.setHeld(ctx, repo, fence, TroubleField, known.fields[TroubleField], strconv.FormatInt(t.At.UnixMilli(), 10))
	if err != nil {
		return fmt.Errorf("store a failure of %s: %w", repo, err)
	}
	return nil
}

// setHeld stores a field of a state under the lease with the given fence. failed is the time of a failure in ms, or "".
func (s *Store) setHeld(ctx context.Context, repo events.RepoPath, fence uint64, field, value, failed string) error {
	keys := []string{s.namespace.Repo(repo), s.namespace.Locks() + repo.Key(), s.namespace.Failing()}
	return heldScript.Run(ctx, s.redis, keys, strconv.FormatUint(fence, 10), field, value, repo.Key(), failed).Err()
}

func (r Repo) setTroubles(found troubles) {
	text, _ := json.Marshal(found) // cannot fail
	r.fields[TroubleField] = string(text)
	if len(found.All) == 0 {
		delete(r.fields, TroubleField)
	}
}

// Forget removes from a loaded state the troubles that match.
func (r Repo) Forget(match func(Trouble) bool) {
	found := r.troubles()
	before := len(found.All)
	maps.DeleteFunc(found.All, func(_ string, t Trouble) bool { return match(t) })
	if len(found.All) < before {
		r.setTroubles(found)
	}
}

// TroubleFields returns the field to set or to drop if [Repo.Forget] has changed the troubles of a loaded state.
func (r Repo) TroubleFields() (set map[string]string, drop []string) {
	switch now := r.fields[TroubleField]; now {
	case r.stored:
		return nil, nil
	case "":
		return nil, []string{TroubleField}
	default:
		return map[string]string{TroubleField: now}, nil
	}
}

// withRefusals returns the value of [TroubleField] with the troubles of r and the refusals of other, which are true
// elsewhere, too. It returns "" if there are none.
func (r Repo) withRefusals(other Repo) string {
	found, more := r.troubles(), other.troubles()
	found.Repo = cmp.Or(found.Repo, more.Repo)
	maps.DeleteFunc(more.All, func(_ string, t Trouble) bool { return t.Scope != events.ScopeCredential })
	maps.Copy(found.All, more.All)
	both := Repo{fields: map[string]string{}}
	both.setTroubles(found)
	return both.fields[TroubleField]
}

func newestFirst(a, b Trouble) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.key(), b.key())) }

func clip(text string, limit int) string {
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit-len("…")], "") + "…"
	}
	return text
}

// Failing returns the troubles of the repository, newest first, and its path in its original case, or "".
func (r Repo) Failing() (failing []Trouble, spelled string) {
	if r.fields[TroubleField] == "" {
		return nil, r.Path()
	}
	found := r.troubles()
	return slices.SortedFunc(maps.Values(found.All), newestFirst), cmp.Or(r.Path(), found.Repo)
}

// CircuitPhase is the phase of a circuit breaker.
type CircuitPhase string

// Phases of a circuit breaker.
const (
	CircuitClosed   CircuitPhase = "closed"    // there were less than CircuitFailures failures in a row
	CircuitOpen     CircuitPhase = "open"      // allows no change
	CircuitHalfOpen CircuitPhase = "half-open" // allows the next change as a probe; its lease excludes others
)

// Circuit is the trouble of a repository at its remote as a circuit breaker, at one moment. The zero value is
// closed.
type Circuit struct {
	Failures int       // in a row
	Trips    int       // times it has opened since the last success; 0 while closed
	Until    time.Time // end of the open phase, by Redis' clock; zero while closed
	Now      time.Time // time of the snapshot, by Redis' clock
}

// Phase returns the circuit's phase at c.Now.
func (c Circuit) Phase() CircuitPhase {
	switch {
	case c.Trips == 0:
		return CircuitClosed
	case c.Until.After(c.Now):
		return CircuitOpen
	}
	return CircuitHalfOpen
}

// CircuitAt returns the circuit breaker at a time of Redis' clock.
func (r Repo) CircuitAt(now time.Time) Circuit {
	t := r.troubles().All[string(events.ScopeRepo)]
	c := Circuit{Failures: t.Failures, Trips: max(0, t.Failures-CircuitFailures+1), Now: now}
	if c.Trips > 0 && t.Until != nil {
		c.Until = *t.Until
	}
	return c
}

// FailingRepos are the repositories that failed last.
type FailingRepos struct {
	Total int64     // all that fail
	Repos []Summary // those that failed last, newest first

	Missing []string // names of cells that do not answer, whose repositories the list lacks; never set by Store
}

// Failing returns the repositories that failed last, up to limit. It forgets those that last failed more than 30
// days ago: nothing tries their changes again.
func (s *Store) Failing(ctx context.Context, limit int) (FailingRepos, error) {
	failing, err := s.failing(ctx, limit)
	if err != nil {
		return FailingRepos{}, fmt.Errorf("list failing repositories: %w", err)
	}
	return failing, nil
}

func (s *Store) failing(ctx context.Context, limit int) (FailingRepos, error) {
	now, err := stream.Time(ctx, s.redis, s.namespace.Failing())
	if err != nil {
		return FailingRepos{}, err
	}
	newest, err := s.scan(ctx, s.namespace.Failing(), "")
	if err != nil {
		return FailingRepos{}, err
	}
	at := map[string]int64{}
	var old []string
	for member, text := range newest {
		at[member], _ = strconv.ParseInt(text, 10, 64)
		if at[member] < now.Add(-maxTroubleAge).UnixMilli() {
			delete(at, member)
			old = append(old, member)
		}
	}
	if len(old) > 0 {
		if err := s.redis.HDel(ctx, s.namespace.Failing(), old...).Err(); err != nil {
			return FailingRepos{}, err
		}
	}
	members := slices.SortedFunc(maps.Keys(at), func(a, b string) int {
		return cmp.Or(cmp.Compare(at[b], at[a]), cmp.Compare(a, b))
	})
	base := string(s.namespace) + "repo:"
	var keys []string
	for _, member := range members[:min(limit, len(members))] {
		keys = append(keys, base+member)
	}
	repos, err := s.summaries(ctx, base, keys, now)
	if err != nil {
		return FailingRepos{}, err
	}
	repos = slices.DeleteFunc(repos, func(s Summary) bool { return len(s.Failing) == 0 }) // it has succeeded meanwhile
	slices.SortStableFunc(repos, func(a, b Summary) int { return newestFirst(a.Failing[0], b.Failing[0]) })
	return FailingRepos{Total: int64(len(members)), Repos: repos}, nil
}
