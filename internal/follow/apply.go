package follow

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/volume"
)

// job is a published change without a result.
type job struct {
	repo   events.RepoPath
	to     events.RepoPath // of a move
	key    string          // in the position
	number uint64          // of the frame that it covers
}

// check is a repository to compare again.
type check struct {
	repo  events.RepoPath
	at    time.Time
	tries int
}

const (
	firstCheck = 5 * time.Second
	lastCheck  = 10 * time.Minute
)

// keyOf identifies a ref in the position; the zero ref the whole repository.
func keyOf(repo events.RepoPath, ref events.Ref) string { return repo.Key() + " " + ref.String() }

// Settle takes a result of the local worker. It returns once Run or Wipe has taken note of it, or ctx is done.
func (f *Follower) Settle(ctx context.Context, result events.Result) {
	select {
	case f.settled <- result:
	case <-ctx.Done():
	}
}

// apply turns what arrives into changes, and tracks their results.
func (f *Follower) apply(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer f.keep(context.WithoutCancel(ctx))
	defer f.asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case note := <-f.answers:
			note()
		case in := <-f.incoming:
			f.take(ctx, in)
		case result := <-f.settled:
			f.settle(result)
		case <-tick.C:
			f.purgeDue(ctx)
			f.due(ctx)
			f.keep(ctx)
		}
		f.update(ctx)
	}
}

// take handles what the connection tells.
func (f *Follower) take(ctx context.Context, in incoming) {
	if in.frame == nil {
		f.setStatus(func(s *Status) { s.Connected, s.Refused = false, errors.Is(in.err, ErrRefused) })
		return
	}
	f.position.frame(in.frame.Cursor)
	switch {
	case in.opened:
		f.live = !in.resume // until a heartbeat, the stream repeats what was there
		f.cfg.Log.InfoContext(ctx, "connected to the reader", "url", f.cfg.Reader.URL())
		f.setStatus(func(s *Status) { s.Connected, s.Refused = true, false })
		if in.anew {
			f.anew = true
			f.keepFirst(ctx, in.frame.Cursor)
			f.list(ctx, true)
		}
		if in.frame.Data == nil {
			return
		}
	case in.frame.Data == nil: // a heartbeat: what came before was read
		f.live = true
		f.checkMissing(ctx)
		return
	}
	result, err := events.ParseResult(in.frame.Data)
	if err != nil {
		f.cfg.Log.WarnContext(ctx, "a result of the reader cannot be decoded, skipped", "error", err)
		return
	}
	f.follow(ctx, result)
}

// follow does what a result of the reader asks for.
func (f *Follower) follow(ctx context.Context, result events.Result) {
	f.touch(result)
	switch result.Type {
	case events.ResultSynced, events.ResultView:
		if f.selects(result.Repo) && result.After != "" {
			f.followRef(ctx, result.Repo, Ref{Ref: result.Ref, Commit: result.After, Default: result.IsDefault()})
		}
	case events.ResultRemoved:
		if result.Ref.IsZero() {
			f.gone[result.Repo.Key()] = knownGone
		}
		f.compare(ctx, result.Repo)
	case events.ResultFailed:
		if result.Class == events.ClassAuth || result.Class == events.ClassNotFound { // the app may read nothing any more
			delete(f.repos, result.Repo.Key()) // a 404 needs no list to be believed
			f.compare(ctx, result.Repo)
		}
	case events.ResultMoved:
		f.followMove(ctx, result.Repo, result.To)
	case events.ResultPurged:
		f.followPurge(result.Repo, result.Commit)
	}
}

// followRef syncs a ref unless its commit is published already.
func (f *Follower) followRef(ctx context.Context, repo events.RepoPath, ref Ref) {
	key := keyOf(repo, ref.Ref)
	published, _, err := f.cfg.Volume.Published(repo)
	if _, open := f.position.open[key]; err == nil && !open && isPublished(published, ref) {
		return
	}
	f.sync(ctx, repo, ref)
}

// isPublished reports whether a ref is published at its commit, under its name.
func isPublished(published volume.Published, ref Ref) bool {
	return published.Commits[ref.Ref] == ref.Commit && (published.Plain == ref.Ref) == ref.Default
}

// followMove moves a repository that is published here.
func (f *Follower) followMove(ctx context.Context, from, to events.RepoPath) {
	published, here, err := f.cfg.Volume.Published(from)
	if err != nil || !here || !f.isOurs(published) || !f.selects(to) || from.String() == to.String() {
		f.compare(ctx, from)
		f.compare(ctx, to)
		return
	}
	f.request(ctx, job{repo: from, to: to, key: keyOf(from, events.Ref{})}, events.Change{
		Type: events.ChangeMoved, Repo: from, To: to, URL: f.cfg.Reader.Remote(to),
	})
}

// isOurs reports whether a repository was fetched from the reader.
func (f *Follower) isOurs(published volume.Published) bool {
	return strings.HasPrefix(published.Remote, f.cfg.Reader.GitURLs())
}

// compare compares a repository with what the token reads of it, and requests what is missing and what is too much.
func (f *Follower) compare(ctx context.Context, repo events.RepoPath) {
	if !f.selects(repo) {
		f.remove(ctx, repo, true)
		return
	}
	if !f.compared[repo.Key()] {
		f.compared[repo.Key()] = true
		f.askRefs(ctx, repo, 1)
	}
}

// maxAsks is how often the refs of a repository are requested because a frame about it has arrived before the answer. A repository may have
// more results than the reader has answers.
const maxAsks = 3

func (f *Follower) askRefs(ctx context.Context, repo events.RepoPath, try int) {
	key, number := repo.Key(), f.position.number
	f.ask(ctx, func() func() {
		f.requests <- struct{}{}
		refs, err := f.cfg.Reader.Refs(ctx, repo)
		<-f.requests
		return func() {
			if f.touched[key] > number && try < maxAsks { // it may have been answered before that
				f.askRefs(ctx, repo, try+1)
				return
			}
			delete(f.compared, key)
			f.noteRefs(ctx, repo, refs, err, number)
		}
	})
}

// noteRefs takes note of the refs that the token reads of a repository, which were requested after the frame with a number.
func (f *Follower) noteRefs(ctx context.Context, repo events.RepoPath, refs []Ref, err error, number uint64) {
	switch {
	case errors.Is(err, ErrNotFound):
		if !f.postpones(repo, f.mayBeListed(repo)) {
			f.remove(ctx, repo, false)
		}
	case err != nil:
		f.cfg.Log.WarnContext(ctx, "refs of the reader cannot be listed, will retry", "repo", repo.String(), "error", err)
		f.retry(repo)
	default:
		f.forget(repo, number)
		f.compareWith(ctx, repo, refs)
	}
}

// compareWith compares a repository with refs of the reader.
func (f *Follower) compareWith(ctx context.Context, repo events.RepoPath, refs []Ref) {
	published, _, err := f.cfg.Volume.Published(repo)
	if err != nil {
		f.cfg.Log.WarnContext(ctx, "volume cannot be read, will retry", "repo", repo.String(), "error", err)
		f.retry(repo)
		return
	}
	listed, hasDefault := map[events.Ref]bool{}, false
	all := f.cfg.Record.Deepened() || f.cfg.SyncAll && !f.Status().CaughtUp
	for _, ref := range refs {
		listed[ref.Ref] = true
		hasDefault = hasDefault || ref.Default
		if all || !isPublished(published, ref) {
			f.sync(ctx, repo, ref)
		}
	}
	if hasDefault || published.Plain.IsZero() {
		delete(f.gone, repo.Key())
	}
	for ref := range published.Commits {
		isPlain := ref == published.Plain
		if !f.isOurs(published) || isPlain && hasDefault || listed[ref] && !isPlain { // the sync of the new default branch replaces the former
			continue
		}
		if isPlain && f.postpones(repo, false) {
			continue
		}
		f.request(ctx, job{repo: repo, key: keyOf(repo, ref)}, events.Change{
			Type: events.ChangeRemoved, Repo: repo, URL: published.Remote, Ref: ref, Force: isPlain,
		})
		if listed[ref] { // no longer the default branch: it goes on under its own name
			f.sync(ctx, repo, refs[slices.IndexFunc(refs, func(r Ref) bool { return r.Ref == ref })])
		}
	}
}

// removeAfter is how long the reader must have shown no more of a repository: while its default branch changes, an app reads nothing of
// it until its own sync is settled.
const removeAfter = 30 * time.Second

// knownGone is since when the reader shows no more of a repository of which it has said that it was removed.
var knownGone = time.Time{}.Add(1)

// mayBeListed reports whether the reader's list may have a repository: only a list shows that a response 404 is the reader's, and not that
// of a proxy.
func (f *Follower) mayBeListed(repo events.RepoPath) bool {
	_, listed := f.repos[repo.Key()]
	return (listed || f.listed == 0) && !f.gone[repo.Key()].Equal(knownGone)
}

// postpones reports whether it is too early to remove a repository, or its default branch, which is then compared again. listed says that
// it is in the reader's list.
func (f *Follower) postpones(repo events.RepoPath, listed bool) bool {
	if _, here, err := f.cfg.Volume.Published(repo); err == nil && !here {
		return false
	}
	key := repo.Key()
	if f.gone[key].IsZero() {
		f.gone[key] = time.Now()
	}
	if !listed && time.Since(f.gone[key]) >= removeAfter {
		delete(f.gone, key)
		return false
	}
	f.retry(repo)
	return true
}

// forget drops what frames up to a number ask for of a repository, which is about to be compared.
func (f *Follower) forget(repo events.RepoPath, number uint64) {
	for key := range f.position.open {
		if strings.HasPrefix(key, repo.Key()+" ") {
			f.position.settled(key, number)
		}
	}
}

// sync requests a sync of a ref. While the stream only repeats what was listed, the commit may be an older one and is not announced.
func (f *Follower) sync(ctx context.Context, repo events.RepoPath, ref Ref) {
	change := events.Change{Type: events.ChangePushed, Repo: repo, URL: f.cfg.Reader.Remote(repo), Ref: ref.Ref, Depth: f.cfg.Depth}
	if ref.Default {
		change.Ref = events.Ref{}
	}
	if f.live && ref.Ref.Commit() == "" {
		change.After = ref.Commit
	}
	f.request(ctx, job{repo: repo, key: keyOf(repo, ref.Ref)}, change)
}

// remove requests the removal of a repository that is published here. Unless forced, the reader is asked once more, under the lease.
func (f *Follower) remove(ctx context.Context, repo events.RepoPath, force bool) {
	f.forget(repo, f.position.number)
	published, here, err := f.cfg.Volume.Published(repo)
	switch {
	case err != nil:
		f.retry(repo)
	case here && f.isOurs(published):
		f.request(ctx, job{repo: repo, key: keyOf(repo, events.Ref{})}, events.Change{
			Type: events.ChangeRemoved, Repo: repo, URL: published.Remote, Force: force,
		})
	}
}

// Source is that of the changes. Like a verified webhook, the stream announces commits.
const Source = "/hooks/follow"

// request publishes a change for the worker.
func (f *Follower) request(ctx context.Context, j job, change events.Change) {
	change.Source, change.Credential = Source, f.cfg.Credential
	f.position.ask(j.key)
	j.number = f.position.number
	change, err := events.NewChange(change)
	if err == nil {
		if err = f.cfg.Publish(ctx, change); err == nil {
			f.jobs[change.ID] = j
			f.requested++
			return
		}
	}
	if ctx.Err() == nil {
		f.cfg.Log.WarnContext(ctx, "change cannot be published, will retry", "repo", j.repo.String(), "error", err)
		f.checkLater(j.repo)
	}
}

// settle takes note of a result of the worker.
func (f *Follower) settle(result events.Result) {
	id := result.ID[:max(0, strings.LastIndexByte(result.ID, '/'))]
	j, ok := f.jobs[id]
	if !ok {
		return
	}
	delete(f.jobs, id)
	switch {
	case result.Type == events.ResultFailed:
		f.checkLater(j.repo)
		if !j.to.IsZero() {
			f.retry(j.to)
		}
	case !j.to.IsZero():
		f.position.settled(j.key, j.number)
		f.position.ask(keyOf(j.to, events.Ref{}))
		f.checkSoon(j.to)
	default:
		f.position.settled(j.key, j.number)
	}
}

// retry compares a repository later, before which the cursor does not pass.
func (f *Follower) retry(repo events.RepoPath) {
	f.position.ask(keyOf(repo, events.Ref{}))
	f.checkLater(repo)
}

// checkLater compares a repository later: the more often that has failed, the later.
func (f *Follower) checkLater(repo events.RepoPath) {
	c := f.checks[repo.Key()]
	if c == nil {
		c = &check{repo: repo}
		f.checks[repo.Key()] = c
	}
	c.later()
}

// later postpones a check.
func (c *check) later() {
	pause := min(firstCheck<<min(c.tries, 10), lastCheck)
	c.at, c.tries = time.Now().Add(pause/2+rand.N(pause/2)), c.tries+1
}

func (f *Follower) checkSoon(repo events.RepoPath) {
	f.checks[repo.Key()] = &check{repo: repo}
}

// due does what is due while the reader is there.
func (f *Follower) due(ctx context.Context) {
	if !f.Status().Connected {
		return
	}
	now := time.Now()
	if !f.listing && !f.listAt.IsZero() && now.After(f.listAt) {
		f.list(ctx, f.all || f.listed == 0 || now.Sub(f.comparedAt) > f.cfg.CompareEvery)
	}
	for key, c := range f.checks {
		switch {
		case now.Before(c.at) || ctx.Err() != nil:
		case !f.isOpen(c.repo):
			delete(f.checks, key)
		default:
			c.at = now.Add(lastCheck) // sooner if it fails
			f.compare(ctx, c.repo)
		}
	}
}

// isOpen reports whether anything of a repository is open.
func (f *Follower) isOpen(repo events.RepoPath) bool {
	for key := range f.position.open {
		if strings.HasPrefix(key, repo.Key()+" ") {
			return true
		}
	}
	return false
}

// keepFirst writes the position at which a follower without one begins: from then on no purge is missed. What is published before it is
// compared at each start.
func (f *Follower) keepFirst(ctx context.Context, cursor string) {
	if f.cfg.Record.Cursor() != "" || f.cfg.Record.Deepened() {
		return
	}
	if err := f.cfg.Record.SetCursor(cursor); err != nil {
		f.cfg.Log.WarnContext(ctx, "position cannot be kept; the next start begins anew", "error", err)
	}
}

// keep writes the position to the volume.
func (f *Follower) keep(ctx context.Context) {
	if f.position.cursor == "" || !f.Status().CaughtUp || f.cfg.Record.Deepened() && len(f.position.open) > 0 {
		return
	}
	if err := f.cfg.Record.SetCursor(f.position.cursor); err != nil {
		f.cfg.Log.WarnContext(ctx, "position cannot be kept; the next start resumes from an earlier one", "error", err)
	}
}

// update updates the status.
func (f *Follower) update(ctx context.Context) {
	if f.listed > 0 && f.listTry == 0 && !f.anew && len(f.compared) == 0 {
		f.position.advance()
	}
	caughtUp, hasFirst := false, f.hasFirst()
	f.setStatus(func(s *Status) {
		s.Behind, s.Cursor = len(f.position.open), f.position.cursor
		if f.anew || len(f.compared) > 0 { // what is behind is not known yet
			s.Behind = max(s.Behind, 1)
		}
		if !s.CaughtUp && hasFirst {
			s.CaughtUp, caughtUp = true, true
		}
		if s.Connected && s.CaughtUp && s.Behind == 0 {
			s.Level = time.Now()
		}
	})
	if caughtUp {
		status := f.Status()
		f.cfg.Log.InfoContext(ctx, "caught up with the reader", "repos", status.Repos, "behind", status.Behind)
	}
	switch {
	case f.cfg.Progress == nil:
	case caughtUp:
		f.cfg.Progress(events.Progress{})
	case !f.Status().CaughtUp && f.requested > 0:
		f.cfg.Progress(events.Progress{Phase: PhaseFollow, Unit: "refs", Done: int64(f.requested - len(f.jobs)), Total: int64(f.requested)})
	}
}

// hasFirst reports whether what was listed first is settled.
func (f *Follower) hasFirst() bool {
	if len(f.compared) > 0 {
		return false
	}
	for _, j := range f.jobs {
		if j.number <= f.listed {
			return false
		}
	}
	return f.listed > 0
}

// PhaseFollow is the phase of the follower's progress.
const PhaseFollow events.Phase = "follow"
