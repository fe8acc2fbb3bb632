package handlers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// A change may announce a commit that the remote does not show: the remote lags behind its webhook, the ref has moved
// on, or it is gone. What `before` says decides, in whatever order the changes arrive:
//
//	the ref shows the commit                 the change is settled with it
//	the ref shows one whose announcements    the change is superseded: it is settled with that commit. Without
//	lead back to it                          `before`, a later change supersedes all earlier ones
//	neither, for a minute, but what the app  the change is settled with that: it is an old one, delivered again
//	has, and that descends from the commit,  or announced late
//	or `before` is given, and of no known
//	commit
//	neither                                  the change waits, and the next look is for all that wait: 0.2 s after
//	                                         the last announcement, then after twice the time, up to a minute
//	neither, ten minutes after it was added  a ref that is gone is removed, as by an announced deletion. Otherwise
//	                                         the change has failed, and the repository is polled
//
// A look lists the refs once. It defers all waiting changes whose commits are not there, and returns the others to
// the stream. What a ref shows meanwhile is synced by a change of its own, so nothing waits for it.

const (
	firstLook = 200 * time.Millisecond
	maxLook   = time.Minute
	patience  = 3 // looks, in 1.4 s, before what a ref shows meanwhile is synced: its own webhook may be on the way

	lookID = "look/" // starts the ID of that change
)

// chain has what is known about the order in which a ref named commits.
type chain struct {
	known   state.Repo
	ref     events.Ref
	plain   bool              // it is the default branch
	before  map[string]string // by commit, the one that the ref named before
	entries map[string]string // by commit, the last entry that announces it
	former  []string          // as stored, like the following
	until   string            // all announcements before this entry precede the last of former
	read    bool              // it has the announcements of all waiting changes

	tip   string
	back  map[string]int // the place of each commit up to tip, which is at 0; nil if it is not known
	limit string         // all announcements before this entry precede the last of back
}

// removed is the commit that a ref names once it is removed.
const removed = "removed"

// chainOf returns the chain of a ref, with what jobs announce. plain reports whether it is the default branch.
func chainOf(known state.Repo, ref events.Ref, plain bool, jobs ...Job) *chain {
	c := &chain{known: known, ref: ref, plain: plain, before: map[string]string{}}
	c.former, c.entries, c.until = known.Chain(ref)
	for i := 1; i < len(c.former); i++ {
		c.before[c.former[i-1]] = c.former[i]
	}
	c.add(jobs...)
	return c
}

// add adds what jobs announce for the ref, also that it was removed. A removal that a poll has requested counts for
// none: the remote may not have the ref yet. Of two announcements of a commit, the later one counts.
func (c *chain) add(jobs ...Job) {
	for _, job := range jobs {
		commit, change := job.Change.Announced(), job.Change
		if change.Type == events.ChangeRemoved && !change.Ref.IsZero() && !isOfPoll(change) {
			commit = removed
		}
		isOfRef := change.Ref == c.ref || c.plain && change.Ref.IsZero()
		if last := c.entries[commit]; commit == "" || !isOfRef || last == job.Entry || events.EntryAfter(last, job.Entry) {
			continue
		}
		if c.entries[commit] == "" {
			delete(c.before, commit) // the ref has moved to it unannounced: what it named before was a guess
		}
		c.entries[commit], c.back = job.Entry, nil
		if change.Before != "" {
			c.before[commit] = change.Before
		}
	}
}

// walk returns the commits that the ref named up to tip, newest first.
func (c *chain) walk(tip string) (commits []string) {
	c.tip, c.back, c.limit = tip, map[string]int{}, ""
	last := ""
	for commit := tip; strings.Trim(commit, "0") != ""; commit = c.before[commit] {
		if _, again := c.back[commit]; again {
			break
		}
		c.back[commit], last = len(commits), commit
		commits = append(commits, commit)
	}
	switch {
	case len(c.former) > 0 && last == c.former[len(c.former)-1]:
		c.limit = c.until
	case c.before[last] == "": // unless the ref was created then
		c.limit = c.entries[last]
	}
	return commits
}

// has reports whether the ref, which shows tip, has named the commit that a change announces, and has moved on since.
func (c *chain) has(tip string, change events.Change, entry string) bool {
	if tip == "" || tip == change.After {
		return tip != ""
	}
	if tip != removed && events.EntryAfter(c.entries[removed], entry) && c.has(removed, change, entry) {
		return true // the ref was removed since, and shows what it named before or what it was created anew at
	}
	if c.back == nil || c.tip != tip {
		c.walk(tip)
	}
	at, there := c.back[change.After]
	if !there {
		return events.EntryAfter(c.limit, entry)
	}
	from, known := c.back[change.Before]
	movesBack := known && from < at && !events.EntryAfter(c.entries[change.Before], entry)
	return !movesBack // which tip does not show yet
}

// supersedes reports whether the ref, which shows tip, has named the commit of a job. It reads the waiting changes if
// that depends on them.
func (c *chain) supersedes(ctx context.Context, tip string, job Job) bool {
	if c.add(job); c.has(tip, job.Change, job.Entry) || c.read {
		return c.has(tip, job.Change, job.Entry)
	}
	c.read = true
	waiting, _ := job.Waiting(ctx) // without them, the job has its own turn
	c.add(waiting...)
	return c.has(tip, job.Change, job.Entry)
}

// isOld reports whether a job announces what the ref named long ago, as a webhook that is delivered again does, or a
// slow publisher: the ref shows tip, which the app has, and neither commit of the job is known to follow on it. After a
// minute, that is no lag. follows reports whether a commit is known to descend from an older one.
func (c *chain) isOld(tip string, job Job, follows func(commit, older string) bool) bool {
	change := job.Change
	isCreated := change.Before != "" && strings.Trim(change.Before, "0") == ""
	switch {
	case c.ref.IsTag(), isCreated: // its hashes may be those of tags; an old ref may have been removed
		return false
	case tip != c.known.Given(change.App, c.ref), job.now().Sub(events.EntryTime(job.Entry)) < maxLook:
		return false
	}
	if follows(tip, change.After) {
		return !follows(change.Before, change.After) // or else the ref moves back to it
	}
	isKnown := change.Before == tip || c.entries[change.Before] != "" || slices.Contains(c.former, change.Before) ||
		slices.Contains(c.former, change.After)
	return change.Before != "" && !isKnown
}

// follows returns [volume.Volume.Follows] for the repository of a job.
func (h *Handlers) follows(ctx context.Context, job Job) func(commit, older string) bool {
	return func(commit, older string) bool { return h.Volume.Follows(ctx, job.Change.Repo, commit, older) }
}

// fields returns the fields to set once the ref shows tip.
func (c *chain) fields(tip string) map[string]string {
	if len(c.former)+len(c.entries) == 0 {
		return nil
	}
	if len(c.former) > 0 && c.before[tip] == "" && c.entries[tip] == "" && !slices.Contains(c.former, tip) {
		c.before[tip] = c.former[0] // it has moved unannounced
	}
	commits := c.walk(tip)
	if len(commits) > state.MaxChain {
		commits = commits[:state.MaxChain]
		c.limit = cmp.Or(c.entries[commits[state.MaxChain-1]], c.limit)
	}
	return c.known.ChainFields(c.ref, commits, c.entries, c.limit)
}

// settles adds to an outcome the end of what is awaited, by a job that has settled and by those that tip supersedes.
func (c *chain) settles(outcome *Outcome, job Job, tip string) {
	fields, drop := c.known.AwaitedFields(job.now(), func(a state.Announcement) bool {
		isOfRef := a.Ref == c.ref.String() || c.plain && a.Ref == ""
		return a.Entry == job.Entry || isOfRef && c.has(tip, a.Change(), a.Entry)
	})
	maps.Copy(outcome.State, fields)
	outcome.Drop = slices.Concat(outcome.Drop, drop)
}

// look is an answer of the remote to all waiting announcements of a repository.
type look struct {
	known   state.Repo
	refs    volume.Refs
	jobs    []Job
	chains  map[events.Ref]*chain
	follows func(commit, older string) bool // as [chain.isOld] needs it
}

// isPending reports whether a job waits for the next look: its ref lacks the commit, and shows nothing that is new for
// its app.
func (l look) isPending(job Job) bool {
	ref := job.Change.Ref
	if ref.IsZero() {
		ref = l.refs.Default
	}
	tip := l.refs.Commits[ref.String()]
	switch {
	case hasExpired(job):
		return false
	case tip == "":
		return true
	case ref.IsTag(): // it may be announced by its own hash
		return false
	case tip != l.known.Given(job.Change.App, ref):
		return false
	}
	if l.chains[ref] == nil {
		l.chains[ref] = chainOf(l.known, ref, ref == l.refs.Default, l.jobs...)
	}
	return !l.chains[ref].has(tip, job.Change, job.Entry) && !l.chains[ref].isOld(tip, job, l.follows)
}

func hasExpired(job Job) bool { return job.now().Sub(events.EntryTime(job.Entry)) >= state.AwaitedFor }

// awaited returns the error of a job that waits for its commit. The first such job after the time of the next look
// looks for all, unless it is alone: then its own sync does.
func (h *Handlers) awaited(ctx context.Context, job Job) error {
	awaited, now := job.Known.Awaited(), job.now()
	switch {
	case !awaited.Has(job.Entry), awaited.HasTurn(job.Entry):
		return nil
	case awaited.Next.After(now):
		return notVisible(job, awaited.Next.Sub(now))
	case len(awaited.Commits) == 1:
		return nil
	}
	return h.look(ctx, job, false)
}

// look lists the refs for all waiting announcements. It defers those that are pending, and returns others that were to
// the stream. It returns an error if the job is pending, as it is if the remote is known to lack its commit.
func (h *Handlers) look(ctx context.Context, job Job, lacks bool) error {
	waiting, err := job.Waiting(ctx)
	if err != nil {
		return redisError(err)
	}
	l := look{
		known: job.Known, jobs: append([]Job{job}, waiting...), chains: map[events.Ref]*chain{},
		follows: h.follows(ctx, job),
	}
	all := slices.DeleteFunc(slices.Clone(l.jobs), func(one Job) bool { return one.Change.Announced() == "" })
	if len(all) > 1 || !lacks {
		if l.refs, err = h.listRefs(ctx, job, job.Change.Repo, sourceOf(job.Change)); err != nil {
			return err
		}
	}
	was := job.Known.Awaited()
	next := was.Without(func(a state.Announcement) bool { // the others are in flight
		isOf := func(one Job) bool { return one.Entry == a.Entry }
		return slices.ContainsFunc(all, isOf) || !l.isPending(Job{Change: a.Change(), Entry: a.Entry, Now: job.Now})
	}, job.now())
	next.Looks++
	var deferred, found []string
	for _, one := range all {
		switch isKnown := was.Has(one.Entry); {
		case one.Entry == job.Entry && lacks, l.isPending(one):
			next.Add(one.Change, one.Entry, false)
			deferred = append(deferred, one.Entry)
			if !isKnown && len(was.Commits) < state.MaxAwaited {
				next.Looks = 0
			}
		case isKnown: // until it has settled, as it may be of no use
			next.Add(one.Change, one.Entry, true)
			found = append(found, one.Entry)
		}
	}
	wait := min(firstLook<<min(next.Looks, 10), maxLook)
	next.Next = job.now().Add(wait).UTC()
	if err := h.States.SetAwaited(ctx, job.Change.Repo, job.Fence, next); err != nil {
		return redisError(err)
	}
	if err := job.Defer(ctx, deferred, wait); err != nil { // the job itself is not parked yet
		return redisError(err)
	}
	if err := job.Defer(ctx, found, 0); err != nil {
		return redisError(err)
	}
	if !slices.Contains(deferred, job.Entry) {
		return nil
	}
	return notVisible(job, wait) // even if too many are stored
}

// unseen decides about a job that was synced, but whose ref does not show the commit that it announces. It returns
// false if the job is superseded, so that its sync counts. err is that of the sync.
func (h *Handlers) unseen(
	ctx context.Context, job Job, c *chain, synced volume.SyncResult, err error,
) (Outcome, bool, error) {
	change := job.Change
	switch {
	case change.Announced() == "", err != nil && events.ClassOf(err) != events.ClassNoRef:
		return Outcome{}, false, nil
	case err == nil && (synced.Object == change.After || c.supersedes(ctx, synced.After, job) ||
		c.isOld(synced.After, job, h.follows(ctx, job))):
		return Outcome{}, false, nil
	}
	awaited := job.Known.Awaited()
	looks := awaited.Looks
	if awaited.HasTurn(job.Entry) { // what it waits for may be among the changes that have just arrived
		looks -= patience
	}
	isLate := hasExpired(job) || awaited.Has(job.Entry) && looks >= patience
	if isLate && err == nil && synced.After != job.Known.Given(change.App, synced.Ref) {
		change.ID = fmt.Sprintf("%s%s/%s", lookID, job.Entry, synced.After)
		change.Before, change.After = "", ""
		shown, err := events.NewChange(change)
		if err != nil {
			return Outcome{}, true, err
		}
		if _, err := h.Watches.Accept(ctx, watch.Delivery{Changes: []events.Change{shown}}); err != nil {
			return Outcome{}, true, redisError(err)
		}
	}
	if hasExpired(job) {
		outcome, err := h.neverSeen(ctx, job, c, synced, err)
		h.coverExpired(&outcome, job, c)
		return outcome, true, err
	}
	return Outcome{}, true, h.look(ctx, job, true)
}

// neverSeen gives up a job.
func (h *Handlers) neverSeen(
	ctx context.Context, job Job, c *chain, synced volume.SyncResult, err error,
) (Outcome, error) {
	change := job.Change
	switch {
	case err != nil && change.Ref.IsZero():
		return Outcome{}, err
	case err != nil:
		removal := job
		removal.Change.Type, removal.Change.Before = events.ChangeRemoved, change.After
		outcome, err := h.Remove(ctx, removal)
		if events.ClassOf(err) != events.ClassConflict { // another replica has the ref
			return outcome, err
		}
	}
	result := job.Result(events.ResultFailed)
	result.Ref, result.Class, result.Retryable = cmp.Or(synced.Ref, change.Ref), events.ClassNoRef, true
	result.Error = fmt.Sprintf("sync %s: commit %.12s, announced for %s, was not visible within %v: it shows %.12s",
		change.Repo, change.After, refName(change.Ref), state.AwaitedFor, cmp.Or(synced.After, "nothing"))
	outcome := Outcome{Result: result, State: state.FenceFields(result)}
	c.settles(&outcome, job, synced.After)
	outcome.Changes, err = pollAfter(job)
	return outcome, err
}

// coverExpired settles other jobs that have expired along with one that was given up: those that announce the same, and
// those of refs that are gone, of which nothing is known. Each would list the refs again, ahead of all other changes.
func (h *Handlers) coverExpired(outcome *Outcome, job Job, c *chain) {
	superseded, given, from := outcome.Covers, outcome.Result, sourceOf(job.Change)
	var refs volume.Refs
	var err error
	outcome.Covers = func(ctx context.Context, other Job) (Outcome, bool) {
		if superseded != nil {
			if covered, ok := superseded(ctx, other); ok {
				return covered, true
			}
		}
		change := other.Change
		if change.Announced() == "" || !hasExpired(other) || sourceOf(change) != from {
			return Outcome{}, false
		}
		covered := Outcome{State: map[string]string{}}
		isSame := change.Ref == job.Change.Ref && change.After == job.Change.After
		switch {
		case isSame && given.Type == events.ResultFailed:
			covered.Result = other.Result(events.ResultFailed)
			covered.Result.Ref, covered.Result.Class = given.Ref, given.Class
			covered.Result.Error, covered.Result.Retryable = given.Error, given.Retryable
		case change.Ref.IsZero(), len(job.Known.FieldsOf(change.Ref)) > 0:
			return Outcome{}, false
		default:
			if refs.Commits == nil && err == nil {
				refs, err = h.listRefs(ctx, job, job.Change.Repo, from)
			}
			if _, there := refs.Commits[change.Ref.String()]; there || err != nil {
				return Outcome{}, false
			}
			covered.Result = other.Result(events.ResultRemoved)
			covered.Result.App = "" // it has received nothing of the ref
		}
		c.settles(&covered, other, "")
		return covered, true
	}
}

// supersedeByRemoval settles the announcements that precede the removal of a ref along with it.
func supersedeByRemoval(outcome *Outcome, job Job) {
	c := chainOf(job.Known, job.Change.Ref, false, job)
	outcome.Covers = func(ctx context.Context, other Job) (Outcome, bool) {
		isOfRef := other.Change.Announced() != "" && other.Change.Ref == c.ref
		if !isOfRef || !c.supersedes(ctx, removed, other) {
			return Outcome{}, false
		}
		covered := Outcome{Result: other.Result(events.ResultRemoved), State: map[string]string{}}
		covered.Result.App = "" // the removal has told the apps
		c.settles(&covered, other, removed)
		return covered, true
	}
	c.settles(outcome, job, removed)
}

func notVisible(job Job, wait time.Duration) error {
	return &events.Error{
		Disposition: events.Contention, Scope: events.ScopeNone, Class: events.ClassBusy,
		RetryAfter: max(wait, time.Millisecond),
		Err: fmt.Errorf("sync %s: commit %.12s, announced for %s, is not visible yet",
			job.Change.Repo, job.Change.After, refName(job.Change.Ref)),
	}
}
