package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// RepoSummary is a repository in a list, as shown by the API and the command line.
type RepoSummary struct {
	state.Summary
	Synced  *time.Time `json:"synced,omitempty"` // when the last sync was settled
	Circuit Circuit    `json:"circuit"`
}

// Circuit is a circuit breaker as shown by the API and the command line.
type Circuit struct {
	Phase     state.CircuitPhase `json:"phase"`
	Failures  int                `json:"failures"` // consecutive failures that count toward opening
	Trips     int                `json:"trips,omitempty"`
	OpenUntil *time.Time         `json:"open_until,omitempty"` // only while open; by Redis' clock
}

// Repo is the complete state of one repository.
type Repo struct {
	RepoSummary
	Remote string     `json:"remote,omitempty"`
	Poll   *time.Time `json:"next_poll,omitempty"` // by Redis' clock; nil if it is not polled
	// what is published is not checked: the remote has not answered for longer than the poll interval
	Unchecked bool              `json:"unchecked,omitempty"`
	Heads     map[string]string `json:"heads"`        // ref to published commit
	Last      []LastResult      `json:"last_results"` // of each app and ref
	Lock      Lease             `json:"lock"`
	// of refs whose watches have rules, refused ones first; without Rules and Told
	Checks []state.Check   `json:"checks,omitempty"`
	Lacks  []state.Missing `json:"missing_submodules,omitempty"` // by ref

	Awaited *state.Awaited `json:"awaited,omitempty"` // announced commits that the remote does not show yet
}

// NewRepoSummary converts a summary.
func NewRepoSummary(s state.Summary) RepoSummary {
	shown := RepoSummary{Summary: s, Circuit: Circuit{
		Phase: s.Circuit.Phase(), Failures: s.Circuit.Failures, Trips: s.Circuit.Trips,
	}}
	if !s.Synced.IsZero() {
		shown.Synced = &s.Synced
	}
	if shown.Circuit.Phase == state.CircuitOpen {
		shown.Circuit.OpenUntil = &s.Circuit.Until
	}
	return shown
}

// InARow returns the most failures in a row of what fails.
func (r RepoSummary) InARow() int {
	n := r.Circuit.Failures
	for _, t := range r.Failing {
		n = max(n, t.Failures)
	}
	return n
}

// ErrUnknownRepo is returned for a repository without state.
var ErrUnknownRepo = errors.New("unknown repository; no worker has processed it under this prefix")

// Repos are the repositories of a deployment.
type Repos struct{ Cells *cells.Set }

func (r *Repos) store(cell cells.Member) *state.Store {
	return state.NewStore(r.Cells.Redis(), cell.Namespace)
}

// Load returns the state of a repository, and the time by Redis' clock.
func (r *Repos) Load(ctx context.Context, repo events.RepoPath) (state.Repo, time.Time, error) {
	cell, err := r.Cells.Of(repo)
	if err != nil {
		return state.Repo{}, time.Time{}, err
	}
	return r.store(cell).LoadAt(ctx, repo)
}

// Get returns the state and the lease of one repository. It returns [ErrUnknownRepo] if there is neither.
func (r *Repos) Get(ctx context.Context, repo events.RepoPath) (Repo, error) {
	cell, err := r.Cells.Of(repo)
	if err != nil {
		return Repo{}, err
	}
	loaded, now, err := r.store(cell).LoadAt(ctx, repo)
	if err != nil {
		return Repo{}, err
	}
	lease, err := (&Leases{Cells: r.Cells}).Get(ctx, "", repo)
	if err != nil {
		return Repo{}, err
	}
	if loaded.IsZero() && !lease.Held {
		return Repo{}, fmt.Errorf("%s: %w", repo, ErrUnknownRepo)
	}
	shown := Repo{
		RepoSummary: NewRepoSummary(loaded.Summary(now)), Remote: loaded.Remote(), Heads: loaded.Heads(),
		Lock: lease, Lacks: loaded.Missing(),
	}
	awaited := loaded.Awaited().Without(func(state.Announcement) bool { return false }, now)
	if len(awaited.Commits) > 0 {
		shown.Awaited = &awaited
	}
	for _, c := range loaded.Checks() {
		c.Rules, c.Told = "", nil
		shown.Checks = append(shown.Checks, c)
	}
	if shown.Repo == "" {
		shown.Repo = repo.String()
	}
	every, next, err := r.store(cell).Polls(ctx, repo)
	if !next.IsZero() {
		shown.Poll = &next
		isLate := every > 0 && now.Sub(shown.Answered) > every+every/4+pollMargin
		shown.Unchecked = isLate && !shown.Lock.Held && len(shown.Heads) > 0 // polls are skipped while a sync holds the lease
	}
	shown.Last = []LastResult{}
	for _, given := range loaded.AllGiven() {
		shown.Last = append(shown.Last, shown.lastResult(given))
	}
	return shown, err
}

// pollMargin is how long a poll may take until the remote answers. Intervals vary by a tenth.
const pollMargin = time.Minute

// LastResult is the commit of a ref in the last result that was published for an app. Whether the app was notified of it is
// another question.
type LastResult struct {
	state.Given
	State string       `json:"state"`           // see the constants
	Class events.Class `json:"class,omitempty"` // of the failure
}

// The states of a [LastResult].
const (
	LastUpToDate    = "up to date" // the published commit; a newer one may wait to be synced
	LastUnchecked   = "unchecked"  // the same, but the remote has answered longer ago than the poll interval
	LastBehind      = "behind"     // another commit is published
	LastUnpublished = "not published"
	LastFailing     = "failing"
)

// lastResult compares a result with what is published.
func (r Repo) lastResult(given state.Given) LastResult {
	last := LastResult{Given: given, State: LastUpToDate}
	switch published := r.Heads[given.Ref]; {
	case published == "":
		last.State = LastUnpublished
	case published != given.Commit:
		last.State = LastBehind
	case slices.Contains(r.Refused, given.Ref):
		last.State, last.Class = LastFailing, events.ClassRefused
	case r.Unchecked:
		last.State = LastUnchecked
	}
	for _, f := range r.Failing {
		isOfApp := f.App == given.App && !f.IsOfPoll() && (f.Ref == "" || f.Ref == given.Ref)
		if isOfApp || f.Scope == events.ScopeRepo {
			last.State, last.Class = LastFailing, f.Class
			break
		}
	}
	return last
}

// RepoPage is a page of repositories, all of one cell. It may be short, or even empty, and still have a next one.
type RepoPage struct {
	Repos   []RepoSummary `json:"repos"`
	Next    string        `json:"next,omitempty"`         // cursor of the next page; "" on the last
	Missing string        `json:"missing_cell,omitempty"` // the cell, if it does not answer
}

// Page lists cell by cell the repositories whose paths begin with prefix, about limit at a time, as [state.Store.List]
// does. It returns [watch.ErrBadAfter] for an invalid cursor.
func (r *Repos) Page(ctx context.Context, prefix, after string, limit int) (page RepoPage, err error) {
	page.Repos = []RepoSummary{}
	page.Next, page.Missing, err = Page(ctx, r.Cells, after, func(
		ctx context.Context, cell cells.Member, after string,
	) (next string, err error) {
		cursor, err := strconv.ParseUint(cmp.Or(after, "0"), 10, 64)
		if err != nil {
			return "", watch.ErrBadAfter
		}
		found, err := r.store(cell).List(ctx, prefix, cursor, limit)
		for _, summary := range found.Repos {
			page.Repos = append(page.Repos, NewRepoSummary(summary))
		}
		if found.Next != 0 {
			next = strconv.FormatUint(found.Next, 10)
		}
		return next, err
	})
	return page, err
}

// RepoLine is a repository in a list, with one of its published refs.
type RepoLine struct {
	RepoSummary
	Cell   string `json:"cell,omitempty"`   // if there are several
	Ref    string `json:"ref,omitempty"`    // the default branch, or else the first published ref
	Commit string `json:"commit,omitempty"` // published for Ref
	Others int    `json:"-"`                // number of other published refs
}

// List returns up to limit repositories whose paths begin with prefix, of all cells that answer, and the other cells. It
// reports whether there are more.
func (r *Repos) List(ctx context.Context, prefix string, limit int) ([]RepoLine, bool, []cells.Missing, error) {
	byRepo := func(a, b RepoLine) int { return cmp.Compare(a.Repo, b.Repo) }
	return Gather(ctx, r.Cells, limit, byRepo, func(cell cells.Member) (list []RepoLine, more bool, err error) {
		found := map[string]state.Summary{} // a repository may be on two pages
		for cursor, last := uint64(0), false; !last && len(found) <= limit; {
			page, err := r.store(cell).List(ctx, prefix, cursor, limit)
			if err != nil {
				return nil, false, err
			}
			for _, summary := range page.Repos {
				found[summary.Repo] = summary
			}
			cursor, last = page.Next, page.Next == 0
		}
		first := make([]state.Summary, 0, len(found))
		for _, name := range slices.Sorted(maps.Keys(found)) {
			first = append(first, found[name])
		}
		list, err = r.lines(ctx, cell, first[:min(len(first), limit)])
		return list, len(first) > limit, err
	})
}

// Describe returns the lines of repositories; without a ref, of those in cells that do not answer.
func (r *Repos) Describe(ctx context.Context, found []state.Summary) ([]RepoLine, error) {
	all, in := make([]RepoLine, len(found)), map[cells.Member][]int{}
	for i, summary := range found {
		all[i].RepoSummary = NewRepoSummary(summary)
		repo, err := events.ParseRepoPath(summary.Repo)
		if cell, failed := r.Cells.Of(repo); err == nil && failed == nil {
			in[cell] = append(in[cell], i)
		}
	}
	_, err := Each(ctx, r.Cells, func(cell cells.Member) error {
		here := make([]state.Summary, len(in[cell]))
		for n, i := range in[cell] {
			here[n] = found[i]
		}
		lines, err := r.lines(ctx, cell, here)
		for n, line := range lines {
			all[in[cell][n]] = line
		}
		return err
	})
	return all, err
}

// lines returns the lines of repositories of a cell.
func (r *Repos) lines(ctx context.Context, cell cells.Member, found []state.Summary) ([]RepoLine, error) {
	paths := make([]string, len(found))
	for i, summary := range found {
		paths[i] = summary.Repo
	}
	published, err := r.store(cell).LoadHeads(ctx, paths)
	if err != nil {
		return nil, err
	}
	lines := make([]RepoLine, len(found))
	for i, summary := range found {
		heads, ref := published[i].Heads(), published[i].Default()
		line := RepoLine{RepoSummary: NewRepoSummary(summary), Cell: Shown(r.Cells, cell), Ref: ref}
		if refs := slices.Sorted(maps.Keys(heads)); len(refs) > 0 {
			if heads[ref] == "" {
				line.Ref = refs[0]
			}
			line.Others = len(refs) - 1
		}
		line.Commit = heads[line.Ref]
		lines[i] = line
	}
	return lines, nil
}

// Failing returns the repositories of all cells that answer that failed last, up to limit.
func (r *Repos) Failing(ctx context.Context, limit int) (all state.FailingRepos, err error) {
	newest := func(a, b state.Summary) int { return b.Failing[0].At.Compare(a.Failing[0].At) }
	list, _, missing, err := Gather(ctx, r.Cells, limit, newest, func(cell cells.Member) ([]state.Summary, bool, error) {
		found, err := r.store(cell).Failing(ctx, limit)
		all.Total += found.Total
		return found.Repos, false, err
	})
	all.Repos, all.Missing = list, Names(missing)
	return all, err
}

// ErrRepoStays means that a repository cannot be removed. Its text says why.
var ErrRepoStays = errors.New("the repository is not removed")

// RemovedRepo is a repository of which nothing is known any more.
type RemovedRepo struct {
	Repo    string `json:"repo"`
	Letters int    `json:"letters"` // dead letters that were dropped with it
}

// mayForget returns [ErrRepoStays] if something of a state is still needed.
func mayForget(known state.Repo) error {
	switch {
	case len(known.Heads()) > 0:
		return fmt.Errorf("%w: it is published; see lockstep publish --removed --force", ErrRepoStays)
	case len(known.Moves()) > 0:
		return fmt.Errorf("%w: changes from before its move may wait; garbage collection forgets it later, once it has no dead "+
			"letters", ErrRepoStays)
	}
	return nil
}

// Remove deletes what is known of a repository that is not watched and not published, such as one that never existed: its
// state with its failures, and its dead letters. A change of it that still waits brings it back, but the
// record of a move stays for such changes: garbage collection knows when there is none. Remove returns [ErrUnknownRepo] or
// [ErrRepoStays].
func (r *Repos) Remove(ctx context.Context, repo events.RepoPath) (RemovedRepo, error) {
	removed := RemovedRepo{Repo: repo.String()}
	if _, err := r.Get(ctx, repo); err != nil {
		return removed, err
	}
	cell, err := r.Cells.Of(repo)
	if err != nil {
		return removed, err
	}
	watched, err := watch.NewRegistry(r.Cells.Redis(), cell.Namespace).Of(ctx, repo)
	switch {
	case err != nil:
		return removed, cell.Explain(err)
	case len(watched.Watches) > 0:
		return removed, fmt.Errorf("%w: %s watches it; see lockstep watch rm", ErrRepoStays, watched.Watches[0].App)
	}
	locker, err := locking.New(locking.Config{Redis: r.Cells.Redis(), Prefix: cell.Namespace.Locks(), KeyName: "repo"})
	if err != nil {
		return removed, err
	}
	defer func() { _ = locker.Close(context.WithoutCancel(ctx)) }()
	gone, request := false, locking.Request{Key: repo.Key(), Job: "rm", Operation: "rm", Wait: 5 * time.Second}
	err = locker.Do(ctx, request, func(ctx context.Context, lease *locking.Lease) error {
		known, err := r.store(cell).Load(ctx, repo)
		if err == nil {
			err = mayForget(known)
		}
		if err == nil {
			gone, err = r.store(cell).Forget(ctx, repo, lease.Guard())
		}
		return err
	})
	if errors.Is(err, locking.ErrTimeout) || err == nil && !gone {
		err = fmt.Errorf("%w: a worker is at work on it; try again", ErrRepoStays)
	}
	if err != nil {
		return removed, cell.Explain(err)
	}
	letters := &Letters{Cells: r.Cells}
	found, _, _, err := letters.List(ctx, LetterQuery{Repo: repo})
	if err == nil {
		removed.Letters, err = letters.DropAll(ctx, found)
	}
	return removed, err
}
