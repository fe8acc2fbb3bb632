package handlers_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// TestNamesMatchModel changes the refs of a remote and the watches of a repository at random, while webhooks are lost,
// doubled, late and in another order, and workers die. After two polls, ten minutes apart, exactly the names are published
// that the watches and the refs give, and each app was told of each removal once. The long form has random seeds.
func TestNamesMatchModel(t *testing.T) {
	seeds := []uint64{976392381404278123} // it found something
	first := uint64(1)
	if os.Getenv("LOCKSTEP_SEED") != "" || testenv.Form(false, true) {
		first = testenv.Seed(t)
	}
	for n := range uint64(testenv.Form(20, 300)) {
		seeds = append(seeds, first+n)
	}
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { playNames(t, seed) })
	}
}

// namesModel is a remote, the watches and what apps were told, and a worker that is under test.
type namesModel struct {
	*world
	seed   uint64
	random *rand.Rand
	steps  int

	commits, others []string          // commits, and IDs of a tree and a blob
	refs            map[string]string // of the remote, by full name
	head            string            // the branch of the remote's HEAD
	watched         map[watch.Key]watch.Watch
	byHand          bool // the branch "hand" was requested without a watch

	queue []queued
	read  string // last entry of the stream that is in the queue
	calm  bool   // every change of a ref was announced, no commit became a tree or a blob, and the default branch is the same

	unannounced map[string]bool // deleted while no watch selected it

	dieAt    string                       // step of the volume at which the worker dies
	given    map[string]map[string]string // commits by app and ref, as results say
	unsure   map[string]bool              // "app ref": the app may have been told, or not: it did not watch the ref all the time
	plain    map[string]string            // by app: ref of the last result for the plain name
	history  []string
	accepted int
}

// queued is a change in the queue.
type queued struct {
	entry    string
	change   events.Change
	due      time.Duration // on the clock of jobs
	attempts int
}

type died struct{ step string }

const modelRepo = "acme/widgets"

func playNames(t *testing.T, seed uint64) {
	m := &namesModel{
		world: newWorld(t), seed: seed, random: rand.New(rand.NewPCG(seed, 31)), refs: map[string]string{}, head: "main",
		watched: map[watch.Key]watch.Watch{}, read: "-", calm: seed%3 == 0, unannounced: map[string]bool{},
		given: map[string]map[string]string{}, unsure: map[string]bool{}, plain: map[string]string{},
	}
	m.handlers.Volume = testenv.Must(volume.OpenVolume(m.root, volume.Config{Step: func(step string) {
		if step == m.dieAt {
			panic(died{step})
		}
	}}))(t)
	defer func() {
		if t.Failed() {
			t.Logf("LOCKSTEP_SEED=%d\n%s", seed, strings.Join(m.history, "\n"))
		}
	}()
	m.createRemote()
	for m.steps = range 30 {
		m.step()
	}
	m.drain()
	m.poll()
	if !m.calm {
		m.later += 10 * time.Minute
		m.poll()
	}
	m.check()
	if m.seed%4 == 1 {
		m.checkOrder()
	}
}

func (m *namesModel) logf(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *namesModel) createRemote() {
	m.commits = []string{m.create(map[string]string{"n": "0"})}
	for n := range 4 {
		m.commits = append(m.commits, m.push(map[string]string{"n": fmt.Sprint(n + 1)}))
	}
	tree := testenv.Must(m.git.Git(m.t.Context(), modelRepo, "", "rev-parse", m.commits[0]+"^{tree}"))(m.t)
	blob := testenv.Must(m.git.Git(m.t.Context(), modelRepo, "", "rev-parse", m.commits[0]+":n"))(m.t)
	m.others = []string{strings.TrimSpace(tree), strings.TrimSpace(blob)}
	m.setRef("refs/heads/main", m.commits[0])
}

// --- the remote

func (m *namesModel) setRef(ref, object string) {
	must(m.t, m.git.SetRef(m.t.Context(), modelRepo, ref, object))
	main, wasCommit := m.main(), m.isCommit(ref)
	m.refs[ref] = object
	if main != "" && main != m.main() || wasCommit && !m.isCommit(ref) {
		m.calm = false
	}
	m.logf("%s is %.7s", ref, object)
}

func (m *namesModel) deleteRef(ref string) {
	must(m.t, m.git.DeleteRef(m.t.Context(), modelRepo, ref))
	main := m.main()
	delete(m.refs, ref)
	m.logf("%s is deleted", ref)
	if ref == "refs/heads/hand" { // which nobody may watch
		m.byHand = false
	}
	if ref == "refs/heads/hand" || main != m.main() {
		m.calm = false
	}
}

// setHead makes another branch the default one, which is not announced to watches of other branches.
func (m *namesModel) setHead(branch string) {
	must(m.t, m.git.SetHead(modelRepo, branch))
	main := m.main()
	if m.head = branch; main != m.main() {
		m.calm = false
	}
	m.logf("HEAD is %s", branch)
}

// main returns the full name of the default branch, or "" if the remote has none. If HEAD names no branch, it is main.
func (m *namesModel) main() string {
	for _, branch := range []string{m.head, "main"} {
		if ref := "refs/heads/" + branch; m.refs[ref] != "" {
			return ref
		}
	}
	return ""
}

func (m *namesModel) isCommit(ref string) bool { return slices.Contains(m.commits, m.refs[ref]) }

func pickOne[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// step does something at random.
func (m *namesModel) step() {
	branches := []string{"main", "dev", "next", "hand", "a", "b"}
	switch what := m.random.IntN(100); {
	case what < 22:
		ref := "refs/heads/" + pickOne(m.random, branches)
		m.setRef(ref, pickOne(m.random, m.commits))
		m.announce(ref)
	case what < 34:
		ref := fmt.Sprintf("refs/tags/v%d", m.random.IntN(12))
		object := pickOne(m.random, m.commits)
		if m.random.IntN(4) == 0 {
			object = pickOne(m.random, m.others)
		}
		m.setRef(ref, object)
		m.announce(ref)
	case what < 44 && len(m.refs) > 0:
		ref := pickOne(m.random, slices.Sorted(maps.Keys(m.refs)))
		m.deleteRef(ref)
		m.announce(ref)
	case what < 50:
		if branch := pickOne(m.random, branches); branch != "hand" && m.refs["refs/heads/"+branch] != "" {
			m.setHead(branch)
			m.announceHead()
		}
	case what < 54:
		m.renameMain(pickOne(m.random, []string{"main", "dev", "next"}))
	case what < 72:
		m.addWatch()
	case what < 78:
		m.removeWatch()
	case what < 80 && m.refs["refs/heads/hand"] != "":
		m.logf("hand is requested by hand")
		m.enqueue(events.Change{Repo: m.repo(), URL: m.git.URL(modelRepo), Ref: mustRef("hand")})
	case what < 84:
		m.enqueue(events.Change{Type: events.ChangeDue, Repo: m.repo()})
	}
	for range m.random.IntN(3) {
		m.deliverOne(true)
	}
}

// renameMain renames the default branch. Forges delete the former one, create the other, and change HEAD.
func (m *namesModel) renameMain(to string) {
	from, ref := m.main(), "refs/heads/"+to
	if from == "" || from == ref {
		return
	}
	object := m.refs[from]
	m.deleteRef(from)
	m.setRef(ref, object)
	m.setHead(to)
	m.announce(from)
	m.announce(ref)
	m.announceHead()
}

// --- webhooks

// announce sends the webhook of a ref: perhaps twice, or not at all. It is handled some time later.
func (m *namesModel) announce(name string) {
	ref := mustRef(name)
	var changes []events.Change
	var told bool
	for _, w := range m.sortedWatches() {
		after := m.refs[name]
		switch {
		case after == "" && w.Ref.Matches(ref) && !told:
			told = true
			changes = append(changes, events.Change{Type: events.ChangeRemoved, Repo: w.Repo, URL: w.URL, Ref: ref})
		case after == "":
		case w.Ref.Matches(ref):
			changes = append(changes, testenv.Must(w.Change("hook", "/hooks/forge", ref, after))(m.t))
		case w.Ref.IsDefault() && name == m.main():
			changes = append(changes, testenv.Must(w.Change("hook", "/hooks/forge", events.Ref{}, after))(m.t))
		}
	}
	m.unannounced[name] = m.refs[name] == "" && !told
	m.send(changes)
}

func (m *namesModel) announceHead() {
	var changes []events.Change
	for _, w := range m.sortedWatches() {
		if w.Ref.IsDefault() {
			changes = append(changes, testenv.Must(w.Change("hook", "/hooks/forge", events.Ref{}, ""))(m.t))
		}
	}
	m.send(changes)
}

func (m *namesModel) send(changes []events.Change) {
	times := 1
	switch what := m.random.IntN(10); {
	case what < 3 && !m.calm:
		times = 0
		m.logf("  its webhook is lost")
	case what > 7:
		times = 2
	}
	for range times {
		for _, change := range changes {
			m.enqueue(change)
		}
	}
}

func (m *namesModel) enqueue(change events.Change) {
	m.accepted++
	change.ID, change.Source = fmt.Sprint("change-", m.accepted), "/test"
	change = testenv.Must(events.NewChange(change))(m.t)
	entry := testenv.Must(m.redis.XAdd(m.t.Context(), emptyEntry()).Result())(m.t)
	m.queue = append(m.queue, queued{entry: entry, change: change})
}

// readStream adds the changes that the registry has published to the queue.
func (m *namesModel) readStream() {
	entries := testenv.Must(m.redis.XRange(m.t.Context(), events.DefaultNamespace.Changes(), m.read, "+").Result())(m.t)
	for _, entry := range entries {
		if m.read == entry.ID {
			continue
		}
		if payload, ok := entry.Values["payload"].(string); ok {
			change := testenv.Must(events.ParseChange([]byte(payload)))(m.t)
			m.queue = append(m.queue, queued{entry: entry.ID, change: change})
		}
	}
	if len(entries) > 0 {
		m.read = entries[len(entries)-1].ID
	}
}

// --- watches

func (m *namesModel) sortedWatches() []watch.Watch {
	return slices.SortedFunc(maps.Values(m.watched), func(a, b watch.Watch) int {
		return strings.Compare(a.App+" "+a.Ref.String(), b.App+" "+b.Ref.String())
	})
}

func (m *namesModel) addWatch() {
	selector := pickOne(m.random, []string{"", "", "main", "dev", "refs/heads/*", "refs/tags/v*", m.commits[1]})
	w := watch.Watch{App: pickOne(m.random, []string{"docs", "scan", "ci"}), URL: m.git.URL(modelRepo)}
	w.Ref = testenv.Must(watch.ParseSelector(selector))(m.t)
	if w.Ref.IsPattern() {
		w.MaxRefs = 1 + m.random.IntN(3)
	}
	w = testenv.Must(watch.New(w))(m.t)
	published, _, err := m.handlers.Volume.Published(m.repo())
	must(m.t, err)
	known := testenv.Must(m.states.Load(m.t.Context(), m.repo()))(m.t)
	for ref, is := range m.unannounced {
		if is && w.Ref.MatchesName(ref) && (published.Commits[mustRef(ref)] != "" || known.Head(mustRef(ref)) != "") {
			m.calm = false // it goes after two looks
		}
	}
	testenv.Must(m.watches.Put(m.t.Context(), w))(m.t)
	m.watched[w.Key()] = w
	m.logf("%s watches %q, %d", w.App, selector, w.MaxRefs)
	m.readStream()
}

func (m *namesModel) removeWatch() {
	if len(m.watched) == 0 {
		return
	}
	w := pickOne(m.random, m.sortedWatches())
	testenv.Must(m.watches.Remove(m.t.Context(), w.Key()))(m.t)
	delete(m.watched, w.Key())
	m.logf("%s no longer watches %q", w.App, w.Ref)
	for ref := range m.given[w.App] {
		if !m.follows(w.App, ref) {
			m.unsure[w.App+" "+ref] = true
		}
	}
	if len(m.watched) == 0 {
		m.byHand = false // the clone is removed
		for app, refs := range m.given {
			for ref := range refs {
				m.unsure[app+" "+ref] = true
			}
		}
	}
	m.readStream()
}

// follows reports whether an app watches a ref by its name or by a pattern.
func (m *namesModel) follows(app, ref string) bool {
	for _, w := range m.watched {
		if w.App == app && w.Ref.MatchesName(ref) {
			return true
		}
	}
	return false
}

// --- the worker

// drain handles all changes, as time passes.
func (m *namesModel) drain() {
	for n := 0; len(m.queue) > 0; n++ {
		if n > 2000 {
			m.t.Fatalf("the changes do not end: %v", m.queue)
		}
		m.deliverOne(false)
	}
}

func (m *namesModel) poll() {
	m.logf("poll")
	m.enqueue(events.Change{Type: events.ChangeDue, Repo: m.repo()})
	m.drain()
}

// deliverOne handles a change that is due, in any order. If mayDie, its worker may die, and the change comes again.
func (m *namesModel) deliverOne(mayDie bool) {
	if len(m.queue) == 0 {
		return
	}
	at := m.random.IntN(len(m.queue))
	if m.queue[at].due > m.later {
		at = slices.IndexFunc(m.queue, func(q queued) bool { return q.due <= m.later })
	}
	if at < 0 {
		first := slices.MinFunc(m.queue, func(a, b queued) int { return int(a.due - b.due) })
		m.later = first.due
		return
	}
	q := m.queue[at]
	m.queue = slices.Delete(m.queue, at, at+1)
	q.attempts++
	if err := m.work(q, mayDie); err != nil {
		again := events.DispositionOf(err) != events.Permanent && events.DispositionOf(err) != events.Malformed
		m.logf("  %s: %v", describe(q.change), err)
		if again && q.attempts < 300 {
			q.due = m.later + max(events.RetryAfter(err), time.Millisecond)
			m.queue = append(m.queue, q)
		}
	}
	m.readStream()
}

func describe(c events.Change) string {
	kind := strings.Split(string(c.Type), ".")[2]
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %.7s", kind, c.App, c.Ref, c.After)), " ")
}

var errWorkerDied = errors.New("the worker died")

// work handles a change once, and settles its outcome.
func (m *namesModel) work(q queued, mayDie bool) (err error) {
	info := testenv.Must(m.redis.XInfoStream(m.t.Context(), events.DefaultNamespace.Changes()).Result())(m.t)
	m.latest = info.LastGeneratedID
	job := m.job(q.entry, q.change)
	job.Change = q.change
	unsettled := false
	if mayDie && m.random.IntN(4) == 0 {
		steps := []string{"", "bound", "listed", "moved", "built", "flipped", "unpublished", "removed", "retired"}
		if m.dieAt = pickOne(m.random, steps); m.dieAt == "" {
			unsettled = true
		}
	}
	defer func() {
		m.dieAt = ""
		if cause := recover(); cause != nil {
			step, isOurs := cause.(died)
			if !isOurs {
				panic(cause)
			}
			err = fmt.Errorf("%w at %q", errWorkerDied, step.step)
		}
	}()
	outcome, err := m.try(job)
	if err != nil {
		return err
	}
	if unsettled {
		return fmt.Errorf("%w before it settled", errWorkerDied)
	}
	m.logf("  %s: %s %s", describe(q.change), outcome.Result.Type, outcome.Result.Ref)
	m.store(outcome)
	for _, next := range outcome.Changes {
		entry := testenv.Must(m.redis.XAdd(m.t.Context(), emptyEntry()).Result())(m.t)
		m.queue = append(m.queue, queued{entry: entry, change: next})
		m.logf("    requests %s", describe(next))
	}
	for _, result := range append([]events.Result{outcome.Result}, outcome.More...) {
		m.hear(result)
	}
	return nil
}

// --- what apps are told

// hear notes what apps learn from a result, as a notifier would tell them.
func (m *namesModel) hear(r events.Result) {
	if r.Type == events.ResultSynced && r.App == "" && m.refs["refs/heads/hand"] != "" && len(m.watched) > 0 {
		m.byHand = true
	}
	if r.Type == events.ResultSynced && r.App != "" {
		if m.given[r.App] == nil {
			m.given[r.App] = map[string]string{}
		}
		m.given[r.App][r.Ref.String()] = r.After
		delete(m.unsure, r.App+" "+r.Ref.String())
		if r.IsDefault() {
			if last := m.plain[r.App]; last != "" && last != r.Ref.String() && !m.follows(r.App, last) {
				m.unsure[r.App+" "+last] = true // it watches another branch now
			}
			m.plain[r.App] = r.Ref.String()
		}
	}
	if r.Type != events.ResultRemoved || !watch.Notable(r) {
		return
	}
	apps := map[string]bool{}
	for _, w := range m.watched {
		if (r.App == "" || r.App == w.App) && w.Ref.Rank(r) > 0 {
			apps[w.App] = true
		}
	}
	for app := range apps {
		m.logf("    %s is told that %q is removed", app, r.Ref)
		switch {
		case watch.IsWhole(r):
			clear(m.given[app])
		case m.given[app][r.Ref.String()] == "":
			m.t.Errorf("%s is told that %s is removed, which it does not have", app, r.Ref)
		default:
			delete(m.given[app], r.Ref.String())
		}
	}
}

// --- what is expected

// selected returns the refs that watches select at the remote. It does not say which branches a pattern keeps if it matches too
// many: some.
func (m *namesModel) selected() (wanted, perhaps map[string]bool) {
	wanted, perhaps = map[string]bool{}, map[string]bool{}
	for _, w := range m.watched {
		one, isOne := w.Ref.Ref()
		switch {
		case w.Ref.IsDefault():
			wanted[m.main()] = m.main() != ""
		case isOne && one.Commit() != "":
			wanted[one.String()] = true
		case isOne:
			wanted[one.String()] = m.isCommit(one.String())
		case strings.HasPrefix(w.Ref.String(), "refs/tags/"):
			for _, tag := range m.lastTags(w.MaxRefs) {
				wanted[tag] = true
			}
		default:
			matching := m.branches()
			for _, branch := range matching {
				perhaps[branch] = true
				if len(matching) <= w.MaxRefs {
					wanted[branch] = true
				}
			}
		}
	}
	maps.DeleteFunc(wanted, func(ref string, is bool) bool { return !is || ref == "" })
	return wanted, perhaps
}

func (m *namesModel) branches() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.refs)), func(ref string) bool { return !strings.HasPrefix(ref, "refs/heads/") })
}

// lastTags returns the n tags of commits with the highest numbers.
func (m *namesModel) lastTags(n int) []string {
	var tags []string
	for number := 20; number >= 0 && len(tags) < n; number-- {
		if tag := fmt.Sprint("refs/tags/v", number); m.isCommit(tag) {
			tags = append(tags, tag)
		}
	}
	return tags
}

// names returns the commits of the published names, by what follows the path: "" is the plain name.
func (m *namesModel) onDisk() map[string]string {
	names := map[string]string{}
	entries, err := os.ReadDir(filepath.Join(m.root, "acme"))
	if errors.Is(err, os.ErrNotExist) {
		return names
	}
	must(m.t, err)
	for _, entry := range entries {
		name, ours := strings.CutPrefix(entry.Name(), "widgets")
		commit, err := os.ReadFile(filepath.Join(m.root, "acme", entry.Name(), ".git", "lockstep-commit"))
		if !ours || err != nil {
			m.t.Errorf("%s: %v", entry.Name(), err)
		}
		names[name] = strings.TrimSpace(string(commit))
	}
	return names
}

func (m *namesModel) commitOf(ref string) string {
	if object := m.refs[ref]; object != "" {
		return object
	}
	return ref // a commit
}

func (m *namesModel) check() {
	m.t.Helper()
	wanted, perhaps := m.selected()
	actual := m.onDisk()
	all := maps.Clone(actual)
	published := map[string]bool{}
	for ref := range wanted {
		name := "@" + mustRef(ref).Suffix()
		if ref == m.main() {
			delete(all, name) // it may have been published under its own name before it became the default branch
			if got, ok := actual[name]; ok && got != m.commitOf(ref) {
				m.t.Errorf("%q is at %.7s, want %.7s", name, got, m.commitOf(ref))
			}
			name = ""
		}
		if actual[name] != m.commitOf(ref) {
			m.t.Errorf("%q is at %.7s, want %s at %.7s", name, actual[name], ref, m.commitOf(ref))
		}
		delete(all, name)
		published[ref] = true
	}
	for ref := range perhaps {
		name := "@" + mustRef(ref).Suffix()
		if ref == m.main() {
			if got, ok := all[name]; ok && got == m.commitOf(ref) {
				delete(all, name)
			}
			name = ""
		}
		if commit, ok := all[name]; ok && commit == m.commitOf(ref) {
			published[ref] = true
			delete(all, name)
		}
	}
	if most := m.mostBranches(); len(perhaps) > 0 {
		kept := len(slices.DeleteFunc(slices.Collect(maps.Keys(published)), func(ref string) bool { return !perhaps[ref] }))
		if kept < most {
			m.t.Errorf("%d branches are published, want %d at least", kept, most)
		}
	}
	if hand := "@" + mustRef("hand").Suffix(); m.refs["refs/heads/hand"] != "" || len(m.watched) == 0 {
		if m.byHand && len(m.watched) > 0 && actual[hand] == "" {
			m.t.Error("what was requested by hand is gone")
		}
		delete(all, hand)
	}
	if len(m.watched) == 0 {
		delete(all, "") // by hand, before
	}
	for name, commit := range all {
		m.t.Errorf("%q is published at %.7s, want it gone", name, commit)
	}
	if len(m.watched) > 0 {
		m.checkTold(published)
		m.checkState()
	}
}

// mostBranches returns the number of branches that a pattern keeps at most.
func (m *namesModel) mostBranches() (most int) {
	for _, w := range m.watched {
		if w.Ref.IsPattern() && strings.HasPrefix(w.Ref.String(), "refs/heads/") {
			most = max(most, min(w.MaxRefs, len(m.branches())))
		}
	}
	return most
}

// checkTold compares what apps have learnt with what is published.
func (m *namesModel) checkTold(published map[string]bool) {
	m.t.Helper()
	for app, refs := range m.given {
		for ref, commit := range refs {
			if m.unsure[app+" "+ref] || published[ref] || ref == "refs/heads/hand" {
				continue
			}
			if watchesPlain := m.watchesDefault(app) && m.main() == "" && m.plain[app] == ref; m.follows(app, ref) || watchesPlain {
				m.t.Errorf("%s was not told that %s, at %.7s, is removed", app, ref, commit)
			}
		}
	}
	for _, w := range m.watched {
		one, isOne := w.Ref.Ref()
		ref := one.String()
		if w.Ref.IsDefault() {
			ref, isOne = m.main(), m.main() != ""
		}
		if !isOne || !published[ref] {
			continue
		}
		if got := m.given[w.App][ref]; got != m.commitOf(ref) {
			m.t.Errorf("%s has %s at %.7s, want %.7s", w.App, ref, got, m.commitOf(ref))
		}
	}
}

func (m *namesModel) watchesDefault(app string) bool {
	for _, w := range m.watched {
		if w.App == app && w.Ref.IsDefault() {
			return true
		}
	}
	return false
}

// checkState compares the state with the volume. Nothing may be recorded as failing.
func (m *namesModel) checkState() {
	m.t.Helper()
	known := testenv.Must(m.states.Load(m.t.Context(), m.repo()))(m.t)
	known.Forget(func(t state.Trouble) bool { return t.Ref == "refs/heads/hand" && t.App == "" }) // what was requested by hand
	if failing := scoped(known); len(failing) > 0 {
		m.t.Errorf("the repository is failing: %+v", failing)
	}
	published, _, err := m.handlers.Volume.Published(m.repo())
	must(m.t, err)
	on := map[string]string{}
	for ref, commit := range published.Commits {
		on[ref.String()] = commit
	}
	if heads := known.Heads(); !maps.Equal(heads, on) {
		m.t.Errorf("the state has %v, the volume %v", heads, on)
	}
}

// checkOrder changes one branch after the other. A pattern keeps those that have changed last.
func (m *namesModel) checkOrder() {
	m.t.Helper()
	most := m.mostBranches()
	branches := m.branches()
	if most == 0 || len(branches) == most {
		return
	}
	m.random.Shuffle(len(branches), func(i, j int) { branches[i], branches[j] = branches[j], branches[i] })
	for _, branch := range branches {
		m.setRef(branch, m.commits[(slices.Index(m.commits, m.refs[branch])+1)%len(m.commits)])
		m.poll()
		m.later += time.Second
	}
	m.later += 10 * time.Minute
	m.poll()
	m.check()
	actual := m.onDisk()
	for _, branch := range branches[len(branches)-most:] {
		name := "@" + mustRef(branch).Suffix()
		if branch == m.main() {
			name = ""
		}
		if actual[name] != m.refs[branch] {
			m.t.Errorf("%s, which changed as one of the last %d, is published at %.7s, want %.7s", branch, most, actual[name], m.refs[branch])
		}
	}
}

// entry returns an entry of the stream of changes that has none.
func emptyEntry() *redis.XAddArgs {
	return &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: []any{"none", "1"}}
}
