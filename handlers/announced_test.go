package handlers_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/gitserver"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

const zeros = "0000000000000000000000000000000000000000"

// lag makes main show a commit.
func (w *world) lag(commit string) {
	w.t.Helper()
	must(w.t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/"+gitserver.Main, commit))
}

// begin makes the clock agree with small entries.
func (w *world) begin() *world {
	w.later = time.Until(time.UnixMilli(10))
	return w
}

// announcements returns the fields of the state about them.
func (w *world) announcements() map[string]string {
	all := w.redis.HGetAll(context.Background(), events.DefaultNamespace.Repo(w.repo())).Val()
	maps.DeleteFunc(all, func(name, _ string) bool { return name != "awaited" && !strings.HasPrefix(name, "chain:") })
	return all
}

// awaits handles a change that waits, and moves the clock to its next attempt. It returns the delay.
func (w *world) awaits(entry string, c events.Change) time.Duration {
	w.t.Helper()
	r, err := w.handle(entry, c)
	if events.ClassOf(err) != events.ClassBusy || events.DispositionOf(err) != events.Contention || events.RetryAfter(err) <= 0 {
		w.t.Fatalf("%+v, %v; want it to wait", r, err)
	}
	w.later += events.RetryAfter(err)
	return events.RetryAfter(err)
}

func TestAnnouncedCommitIsAwaited(t *testing.T) {
	w := newWorld(t).begin()
	first := w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url})
	second := w.push(map[string]string{"b": "2"})
	w.lag(first)
	change := events.Change{URL: url, Before: first, After: second}
	var delays []time.Duration
	n := w.asked(func() {
		for range 9 {
			delays = append(delays, w.awaits("2-0", change))
		}
	})
	if n != 9 || delays[0] < 200*time.Millisecond || delays[1] < 2*delays[0] || delays[8] > time.Minute || delays[8] < 50*time.Second {
		t.Errorf("%d looks after %v; want 9, from 0.2 s to about a minute", n, delays)
	}
	known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
	if a := known.Awaited(); len(a.Commits) != 1 || a.Commits[0].Commit != second || a.Looks != 8 {
		t.Errorf("the state says %+v", a)
	}
	w.lag(second)
	if r := w.mustHandle("2-0", change); r.Before != first || r.After != second {
		t.Errorf("result %+v; want %s", r, second)
	}
	if got := w.announcements(); got["awaited"] != "" || len(got) != 1 {
		t.Errorf("the state has %v", got)
	}
}

// TestNeverShown gives up after ten minutes.
func TestNeverShown(t *testing.T) {
	for name, tc := range map[string]struct {
		ref      string
		prepare  func(w *world)
		result   events.ResultType
		requests int // changes
		failing  int
		err      events.Class
	}{
		"its ref is there":         {ref: "refs/heads/main", result: events.ResultFailed, requests: 1, failing: 1},
		"the default branch":       {result: events.ResultFailed, requests: 1, failing: 1},
		"its ref is gone":          {ref: "refs/heads/gone", result: events.ResultRemoved},
		"its tag is gone":          {ref: "refs/tags/gone", result: events.ResultRemoved},
		"a published ref is gone":  {ref: "refs/heads/dev", prepare: (*world).loseDev, result: events.ResultRemoved},
		"an empty repository":      {prepare: (*world).empty, err: events.ClassNoRef},
		"a ref of an empty remote": {ref: "refs/heads/main", prepare: (*world).empty, result: events.ResultRemoved},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).begin()
			w.create(map[string]string{"a": "1"})
			change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs", After: absent}
			if tc.ref != "" {
				change.Ref = mustRef(tc.ref)
			}
			if tc.prepare == nil {
				tc.prepare = func(w *world) { w.mustHandle("1-0", events.Change{URL: change.URL, App: "docs"}) }
			}
			tc.prepare(w)
			began, looks := w.later, 0
			var r events.Result
			var err error
			for err = errWaits; events.ClassOf(err) == events.ClassBusy && looks < 100; looks++ {
				if r, err = w.handle("9-0", change); err != nil {
					w.later += events.RetryAfter(err)
				}
			}
			if events.ClassOf(err) != tc.err && err != nil || r.Type != tc.result || len(w.next) != tc.requests {
				t.Errorf("%+v, %v, %d requests; want %s", r, err, len(w.next), tc.result)
			}
			if took := w.later - began; took < 10*time.Minute || took > 12*time.Minute || looks > 25 {
				t.Errorf("it took %v and %d looks", took, looks)
			}
			if tc.result == events.ResultFailed && (r.Ref.IsZero() || !strings.Contains(r.Error, "was not visible within 10m")) {
				t.Errorf("the result of %q says %q", r.Ref, r.Error)
			}
			known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
			if failing, _ := known.Failing(); len(failing) != tc.failing && tc.err == "" {
				t.Errorf("failing: %+v", failing)
			}
			if got := w.announcements(); got["awaited"] != "" && tc.err == "" {
				t.Errorf("the state has %v", got)
			}
		})
	}
}

var errWaits = events.Errorf(events.Contention, events.ClassBusy, "not yet")

// loseDev publishes dev, which the remote then deletes.
func (w *world) loseDev() {
	dev, url := mustRef("refs/heads/dev"), w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
	must(w.t, w.git.SetRef(context.Background(), "acme/widgets", dev.String(), w.git.Head("acme/widgets", "refs/heads/main")))
	w.mustHandle("2-0", events.Change{URL: url, App: "docs", Ref: dev})
	must(w.t, w.git.DeleteRef(context.Background(), "acme/widgets", dev.String()))
}

// empty makes the remote an empty repository, which was never cloned.
func (w *world) empty() {
	must(w.t, w.git.Delete("acme/widgets"))
	must(w.t, w.git.CreateEmpty(context.Background(), "acme/widgets"))
}

func TestOneLookAnswersAllAnnouncements(t *testing.T) {
	const gone = 120
	w := newWorld(t).begin()
	first := w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
	second := w.push(map[string]string{"b": "2"})
	of := func(n int) events.Change {
		return events.Change{URL: url, App: "docs", Ref: mustRef(fmt.Sprint("refs/heads/gone-", n)), After: absent}
	}
	for n := 1; n < gone; n++ {
		w.waiting = append(w.waiting, w.job(fmt.Sprintf("2-%d", n), of(n)))
	}
	main := events.Change{URL: url, App: "docs", Before: first, After: second}
	w.waiting = append(w.waiting, w.job("3-0", main))
	if n := w.asked(func() { w.awaits("2-0", of(0)) }); n > 4 { // two requests list refs
		t.Errorf("%d requests for the first look", n)
	}
	if _, deferred := w.deferred["3-0"]; deferred || len(w.deferred) != gone {
		t.Errorf("%d deferred, the push %v; want all but the push", len(w.deferred), deferred)
	}
	if r := w.mustHandle("3-0", main); r.After != second {
		t.Errorf("the push: %+v", r)
	}
	w.waiting = w.waiting[:gone-1]
	clear(w.deferred)
	if n := w.asked(func() { w.awaits("2-0", of(0)) }); n > 2 || len(w.deferred) != gone {
		t.Errorf("%d requests for the next look, %d deferred", n, len(w.deferred))
	}
	w.later -= time.Minute
	if n := w.asked(func() { w.awaits("2-7", of(7)) }); n != 0 { // in another process
		t.Errorf("%d requests before the next look", n)
	}
	// One appears.
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/gone-7", first))
	w.later += 2 * time.Minute
	clear(w.deferred)
	w.awaits("2-0", of(0))
	if delay, deferred := w.deferred["2-7"]; !deferred || delay != 0 || len(w.deferred) != gone {
		t.Errorf("%d deferred, the one whose branch is there by %v (%v); want at once", len(w.deferred), delay, deferred)
	}
}

// TestSupersededInWhateverOrder announces a series of pushes. The remote shows one of its commits.
func TestSupersededInWhateverOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		order   string // of webhooks; a push is named by its commit
		shown   string
		settled string // the others wait
	}{
		"in order":                         {order: "bcd", shown: "d", settled: "bcd"},
		"reversed":                         {order: "dcb", shown: "d", settled: "bcd"},
		"mixed":                            {order: "cdb", shown: "d", settled: "bcd"},
		"the remote lags":                  {order: "bcd", shown: "b", settled: "b"},
		"the remote lags, reversed":        {order: "dcb", shown: "b", settled: "b"},
		"the remote lags by one, reversed": {order: "dcb", shown: "c", settled: "bc"},
		"one webhook is lost":              {order: "bd", shown: "d", settled: "bd"}, // after a minute
		"moved back":                       {order: "bcB", shown: "b", settled: "bcB"},
		"moved back, which it lags behind": {order: "bcB", shown: "c", settled: "bc"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).begin()
			commits := map[byte]string{'a': w.create(map[string]string{"a": "1"})}
			url := w.git.URL("acme/widgets")
			w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
			for _, c := range "bcd" {
				commits[byte(c)] = w.push(map[string]string{"a": string(c)})
			}
			before := map[byte]string{'b': commits['a'], 'c': commits['b'], 'd': commits['c'], 'B': commits['c']}
			commits['B'] = commits['b']
			w.lag(commits[tc.shown[0]])
			changes, waiting := map[string]events.Change{}, map[string]handlers.Job{}
			for i := range len(tc.order) {
				entry, c := fmt.Sprintf("2-%d", i), tc.order[i]
				changes[entry] = events.Change{URL: url, App: "docs", Before: before[c], After: commits[c]}
				waiting[entry] = w.job(entry, changes[entry])
			}
			settled := ""
			for range 3 { // each has its own turn
				for i := range len(tc.order) {
					entry := fmt.Sprintf("2-%d", i)
					job, ok := waiting[entry]
					if !ok {
						continue
					}
					w.waiting = slices.Collect(maps.Values(waiting))
					w.waiting = slices.DeleteFunc(w.waiting, func(j handlers.Job) bool { return j.Entry == entry })
					r, err := w.handle(entry, changes[entry])
					if events.ClassOf(err) == events.ClassBusy {
						continue
					}
					must(t, err)
					if r.After != commits[tc.shown[0]] {
						t.Errorf("%c is settled with %+v", tc.order[i], r)
					}
					settled += string(tc.order[i])
					delete(waiting, job.Entry)
				}
				w.later += time.Minute
			}
			got := []byte(settled)
			slices.Sort(got)
			want := []byte(tc.settled)
			slices.Sort(want)
			if string(got) != string(want) {
				t.Errorf("settled %q, want %q", settled, tc.settled)
			}
		})
	}
}

// TestShownMeanwhileIsSynced has another commit than the announced one appear.
func TestShownMeanwhileIsSynced(t *testing.T) {
	w := newWorld(t).begin()
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
	second := w.push(map[string]string{"b": "2"})
	for range 4 {
		if n := w.redis.XLen(context.Background(), events.DefaultNamespace.Changes()).Val(); n > 0 {
			t.Fatalf("%d changes at once; a webhook of the commit may be on its way", n)
		}
		w.awaits("2-0", events.Change{URL: url, App: "docs", After: absent})
		w.later += time.Second
	}
	w.awaits("2-0", events.Change{URL: url, App: "docs", After: absent})
	added := w.redis.XRange(context.Background(), events.DefaultNamespace.Changes(), "-", "+").Val()
	if len(added) != 1 || strings.Contains(fmt.Sprint(added[0].Values), absent) {
		t.Fatalf("changes %v; want one that announces nothing", added)
	}
	if r := w.mustHandle("3-0", events.Change{URL: url, App: "docs"}); r.After != second || r.Unchanged() {
		t.Errorf("the requested change: %+v", r)
	}
	w.awaits("2-0", events.Change{URL: url, App: "docs", After: absent})
	if n := w.redis.XLen(context.Background(), events.DefaultNamespace.Changes()).Val(); n != 1 {
		t.Errorf("%d changes after the second look; there is nothing new", n)
	}
}

// TestTwoWaitForWhatIsGone has two changes announce commits that the remote has forgotten, and shows another one that the app lacks: as after a push that
// nothing has announced. Neither change takes the turns of the other: what is shown is synced, and they look less and less often.
func TestTwoWaitForWhatIsGone(t *testing.T) {
	w := newWorld(t).begin()
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
	w.push(map[string]string{"b": "2"})
	changes := map[string]events.Change{
		"2-0": {URL: url, App: "docs", After: absent}, "3-0": {URL: url, App: "docs", After: strings.Repeat("ab", 20)},
	}
	due := map[string]time.Duration{"2-0": w.later, "3-0": w.later}
	handled, shown := 0, 0
	for began := w.later; w.later-began < 50*time.Second && handled < 100; handled++ {
		entry, other := "2-0", "3-0"
		if due[other] < due[entry] {
			entry, other = other, entry
		}
		w.later = max(w.later, due[entry])
		w.waiting = []handlers.Job{w.job(other, changes[other])}
		now := w.later
		clear(w.deferred)
		due[entry] = now + w.awaits(entry, changes[entry])
		if delay, ok := w.deferred[other]; ok {
			due[other] = now + delay
		}
		w.later = now
		if n := w.redis.XLen(context.Background(), events.DefaultNamespace.Changes()).Val(); n > 0 && shown == 0 {
			shown = handled + 1
			w.mustHandle("4-0", events.Change{URL: url, App: "docs"})
		}
	}
	if shown == 0 || shown > 20 || handled > 50 {
		t.Errorf("%d handled in 50 s; what is shown was synced after %d", handled, shown)
	}
}

func TestAnnouncementsOfAllKinds(t *testing.T) {
	v1 := mustRef("refs/tags/v1")
	for name, do := range map[string]func(t *testing.T, w *world, first, second string){
		"a tag by its own hash": func(t *testing.T, w *world, first, _ string) {
			must(t, w.git.Tag(context.Background(), "acme/widgets", "v1", first))
			object := testenv.Must(w.git.Git(context.Background(), "acme/widgets", "", "rev-parse", "v1"))(t)
			if r := w.mustHandle("2-0", events.Change{URL: w.git.URL("acme/widgets"), Ref: v1, After: strings.TrimSpace(object)}); r.After != first {
				t.Errorf("%+v", r)
			}
		},
		"a tag by its commit": func(t *testing.T, w *world, first, _ string) {
			change := events.Change{URL: w.git.URL("acme/widgets"), Ref: v1, After: first}
			w.awaits("2-0", change)
			must(t, w.git.SetRef(context.Background(), "acme/widgets", v1.String(), first))
			if r := w.mustHandle("2-0", change); r.After != first {
				t.Errorf("%+v", r)
			}
		},
		"two apps": func(t *testing.T, w *world, first, second string) {
			docs := events.Change{URL: w.git.URL("acme/widgets"), App: "docs", Before: first, After: second}
			search := docs
			search.App = "search"
			w.mustHandle("1-1", events.Change{URL: docs.URL, App: "docs"})
			w.mustHandle("1-2", events.Change{URL: docs.URL, App: "search"})
			w.waiting = []handlers.Job{w.job("2-1", search)}
			w.awaits("2-0", docs)
			if _, deferred := w.deferred["2-1"]; !deferred {
				t.Errorf("deferred %v; want the other app's", w.deferred)
			}
			w.lag(second)
			w.waiting = nil
			for entry, change := range map[string]events.Change{"2-0": docs, "2-1": search} {
				if r := w.mustHandle(entry, change); r.After != second || r.App != change.App {
					t.Errorf("%+v", r)
				}
			}
		},
		"the table is lost": func(t *testing.T, w *world, first, second string) {
			change := events.Change{URL: w.git.URL("acme/widgets"), Before: first, After: second}
			w.awaits("2-0", change)
			w.awaits("2-0", change)
			w.redis.Del(context.Background(), events.DefaultNamespace.Repo(w.repo()))
			w.awaits("2-0", change)
			w.lag(second)
			if r := w.mustHandle("2-0", change); r.After != second {
				t.Errorf("%+v", r)
			}
		},
		"replicas take turns": func(t *testing.T, w *world, first, second string) {
			third := w.pushTo(second)
			change := events.Change{URL: w.git.URL("acme/widgets"), Before: second, After: third}
			for _, shown := range []string{second, first, second, first} {
				w.lag(shown)
				w.awaits("2-0", change)
			}
			w.lag(third)
			if r := w.mustHandle("2-0", change); r.After != third {
				t.Errorf("%+v", r)
			}
			w.lag(first)
			w.mustHandle("3-0", events.Change{URL: change.URL}) // a poll
			if r := w.mustHandle("3-1", events.Change{URL: change.URL, Before: absent, After: first}); r.After != first {
				t.Errorf("%+v", r)
			}
			w.awaits("4-0", change) // the forge delivers it again
		},
		"without before, a later one counts": func(t *testing.T, w *world, _, second string) {
			url := w.git.URL("acme/widgets")
			w.waiting = []handlers.Job{w.job("3-0", events.Change{URL: url, After: second})}
			w.lag(second)
			for _, entry := range []string{"2-0", "3-0"} {
				change := events.Change{URL: url, After: map[string]string{"2-0": absent, "3-0": second}[entry]}
				if r := w.mustHandle(entry, change); r.After != second {
					t.Errorf("%+v", r)
				}
			}
			w.waiting = nil
			if r := w.mustHandle("2-1", events.Change{URL: url, After: absent}); r.After != second {
				t.Errorf("an earlier one, late: %+v", r)
			}
			w.awaits("4-0", events.Change{URL: url, After: absent})
		},
		"a branch that was deleted": func(t *testing.T, w *world, first, second string) {
			url, dev := w.git.URL("acme/widgets"), mustRef("refs/heads/dev")
			of := func(before, after string) events.Change {
				return events.Change{Repo: w.repo(), URL: url, App: "docs", Ref: dev, Before: before, After: after}
			}
			created, pushed, anew := of(zeros, first), of(first, second), of(zeros, absent)
			w.awaits("2-0", created)
			w.awaits("2-1", pushed)
			w.awaits("4-0", anew)
			w.waiting = []handlers.Job{w.job("2-0", created), w.job("2-1", pushed), w.job("4-0", anew)}
			outcome := testenv.Must(w.outcome("3-0", events.Change{Type: events.ChangeRemoved, URL: url, Ref: dev, Before: second}))(t)
			covered := ""
			for _, job := range w.waiting {
				if o, ok := outcome.Covers(context.Background(), job); ok && o.Result.Type == events.ResultRemoved {
					covered += job.Entry + " "
				}
			}
			if covered != "2-0 2-1 " || strings.Contains(outcome.State["awaited"], second) || !strings.Contains(outcome.State["awaited"], absent) {
				t.Errorf("covered %q, state %v; want the pushes before the removal", covered, outcome.State)
			}
			poll := testenv.Must(w.outcome("5-0", events.Change{Type: events.ChangeRemoved, URL: url, Ref: dev}))(t)
			if _, ok := poll.Covers(context.Background(), w.waiting[2]); !ok {
				t.Error("a removal without before covers no earlier announcement")
			}
		},
		"a branch that was created anew": func(t *testing.T, w *world, first, second string) {
			dev := mustRef("refs/heads/dev")
			must(t, w.git.SetRef(context.Background(), "acme/widgets", dev.String(), second))
			url := w.git.URL("acme/widgets")
			w.mustHandle("2-0", events.Change{URL: url, Ref: dev, Before: zeros, After: second})
			w.awaits("3-0", events.Change{URL: url, Ref: dev, Before: zeros, After: first})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).begin()
			first := w.create(map[string]string{"a": "1"})
			w.mustHandle("1-0", events.Change{URL: w.git.URL("acme/widgets")})
			second := w.push(map[string]string{"b": "2"})
			w.lag(first)
			do(t, w, first, second)
		})
	}
}

// pushTo pushes a commit after another one, and makes main show that again.
func (w *world) pushTo(commit string) string {
	w.lag(commit)
	pushed := w.push(map[string]string{"c": "3"})
	w.lag(commit)
	return pushed
}

// TestRemovalOfWatchedRefSettlesItsPushes has a push wait for a branch that is gone, or that was created anew.
func TestRemovalOfWatchedRefSettlesItsPushes(t *testing.T) {
	dev := mustRef("refs/heads/dev")
	prepare := func(t *testing.T) (w *world, first string, push, removal events.Change) {
		w = newWorld(t).begin()
		first = w.create(map[string]string{"a": "1"})
		w.watch("docs", "")
		w.watch("docs", "dev")
		w.mustHandle("1-0", events.Change{URL: w.git.URL("acme/widgets"), App: "docs", Watched: true})
		push = events.Change{URL: w.git.URL("acme/widgets"), App: "docs", Watched: true, Ref: dev, Before: zeros, After: absent}
		removal = events.Change{Type: events.ChangeRemoved, URL: push.URL, Ref: dev, Before: absent}
		return w, first, push, removal
	}
	t.Run("gone", func(t *testing.T) {
		w, _, push, removal := prepare(t)
		w.awaits("2-0", push)
		w.waiting = []handlers.Job{w.job("2-0", push)}
		outcome := testenv.Must(w.outcome("3-0", removal))(t)
		if outcome.Covers == nil {
			t.Fatal("the removal covers nothing")
		}
		covered, ok := outcome.Covers(context.Background(), w.waiting[0])
		if r := covered.Result; !ok || r.Type != events.ResultRemoved || r.App != "" || r.Ref != dev {
			t.Errorf("the push: %+v, %v; want it removed, and no app told", r, ok)
		}
		w.store(outcome)
		if got := w.announcements(); got["awaited"] != "" {
			t.Errorf("the state has %v", got)
		}
	})
	t.Run("created anew", func(t *testing.T) {
		w, first, push, removal := prepare(t)
		must(t, w.git.SetRef(context.Background(), "acme/widgets", dev.String(), first))
		anew := push
		anew.After = first
		w.waiting = []handlers.Job{w.job("2-0", push), w.job("3-0", removal)}
		if r := w.mustHandle("4-0", anew); r.After != first {
			t.Errorf("the push after the removal: %+v", r)
		}
		w.waiting = w.waiting[1:]
		if r := w.mustHandle("2-0", push); r.After != first {
			t.Errorf("the push before the removal: %+v", r)
		}
		w.awaits("5-0", push) // after it
	})
}

// TestMoreWaitThanAreStored has a push wait beside as many as are stored, which are in flight.
func TestMoreWaitThanAreStored(t *testing.T) {
	w := newWorld(t).begin()
	first := w.create(map[string]string{"a": "1"})
	change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}
	w.mustHandle("1-0", change)
	change.Before, change.After = first, absent
	awaited := state.Awaited{Next: time.Now()}
	for n := range state.MaxAwaited {
		one := events.Change{Ref: mustRef(fmt.Sprint("refs/heads/gone-", n)), After: absent}
		awaited.Add(one, fmt.Sprintf("20-%d", n), false)
	}
	must(t, w.states.SetAwaited(context.Background(), w.repo(), w.job("2-0", change).Fence, awaited))
	w.awaits("2-1", change)
}

// TestExpiresAtItsFirstLook has a change that was handled late find another commit than the one that it announces.
func TestExpiresAtItsFirstLook(t *testing.T) {
	w := newWorld(t).begin()
	w.create(map[string]string{"a": "1"})
	w.later += 20 * time.Minute
	r := w.mustHandle("2-0", events.Change{URL: w.git.URL("acme/widgets"), App: "docs", After: absent})
	n := w.redis.XLen(context.Background(), events.DefaultNamespace.Changes()).Val()
	if r.Type != events.ResultFailed || n != 1 {
		t.Errorf("%+v, and %d changes; want what is shown synced", r, n)
	}
}

// TestGivenUpWhileAnotherReplicaHasIt gives up a branch that only the poll finds.
func TestGivenUpWhileAnotherReplicaHasIt(t *testing.T) {
	w := newWorld(t).begin()
	first, dev := w.create(map[string]string{"a": "1"}), mustRef("refs/heads/dev")
	testenv.Must(w.git.Create(context.Background(), "acme/replica", map[string]string{"a": "1"}))(t)
	must(t, w.git.SetRef(context.Background(), "acme/widgets", dev.String(), first))
	w.watch("docs", "dev")
	w.later += 20 * time.Minute
	change := events.Change{Repo: w.repo(), URL: w.git.URL("acme/replica"), App: "docs", Ref: dev, After: absent}
	r := w.mustHandle("2-0", change)
	if r.Type != events.ResultFailed || r.Ref != dev || r.Class != events.ClassNoRef || len(w.next) != 1 {
		t.Errorf("%+v, %d requests; want it failed, and a poll", r, len(w.next))
	}
}

// TestNothingIsAwaitedOnceItIsSettled has changes that wait settle in other ways than by their own syncs.
func TestNothingIsAwaitedOnceItIsSettled(t *testing.T) {
	for name, settle := range map[string]func(t *testing.T, w *world, change events.Change, first string){
		"along with another": func(t *testing.T, w *world, change events.Change, first string) {
			var commits []string
			before := first
			for n := range 3 {
				commits = append(commits, w.push(map[string]string{"a": fmt.Sprint("b", n)}))
			}
			w.lag(first)
			for n, commit := range commits[:2] {
				change.Before, change.After, before = before, commit, commit
				w.awaits(fmt.Sprintf("2-%d", n), change)
				w.waiting = append(w.waiting, w.job(fmt.Sprintf("2-%d", n), change))
			}
			w.lag(commits[2])
			w.latest = "9-0"
			change.Before, change.After = before, commits[2]
			outcome := testenv.Must(w.outcome("3-0", change))(t)
			w.store(outcome)
			for _, job := range w.waiting {
				covered, ok := outcome.Covers(context.Background(), job)
				if !ok {
					t.Fatalf("%s is not covered", job.Entry)
				}
				w.store(covered)
			}
		},
		"refused": func(t *testing.T, w *world, change events.Change, first string) {
			change.After = w.push(map[string]string{"b": "2"})
			w.lag(first)
			w.awaits("2-0", change)
			must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/main", w.unrelated()))
			change.After = w.git.Head("acme/widgets", "refs/heads/main")
			w.watchAs(watch.Watch{App: "docs", URL: change.URL, Depth: events.DepthFull, Options: watch.With(signatures.Options{NoRewind: true})}, "")
			if r := w.mustHandle("2-0", change); r.Type != events.ResultFailed {
				t.Errorf("%+v", r)
			}
		},
		"a tree": func(t *testing.T, w *world, change events.Change, first string) {
			change.Ref, change.After = mustRef("refs/tags/v1"), absent
			w.awaits("2-0", change)
			tree := testenv.Must(w.git.Git(context.Background(), "acme/widgets", "", "rev-parse", first+"^{tree}"))(t)
			must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/tags/v1", strings.TrimSpace(tree)))
			if r := w.mustHandle("2-0", change); r.Type != events.ResultFailed {
				t.Errorf("%+v", r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).begin()
			first := w.create(map[string]string{"a": "1"})
			change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}
			w.mustHandle("1-0", change)
			settle(t, w, change, first)
			if got := w.announcements()["awaited"]; got != "" {
				t.Errorf("the state has %v", got)
			}
		})
	}
}

// unrelated returns a commit of another history.
func (w *world) unrelated() string {
	w.t.Helper()
	tree := testenv.Must(w.git.Git(context.Background(), "acme/widgets", "", "rev-parse", "main^{tree}"))(w.t)
	commit := testenv.Must(w.git.Git(context.Background(), "acme/widgets", "", "commit-tree", "-m", "x", strings.TrimSpace(tree)))(w.t)
	return strings.TrimSpace(commit)
}

// TestGivenUpTogether gives up changes that expire at the same time.
func TestGivenUpTogether(t *testing.T) {
	w := newWorld(t).begin()
	first := w.create(map[string]string{"a": "1"})
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/there", first))
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/known", first))
	w.watch("docs", "")
	of := func(ref string) events.Change {
		return events.Change{URL: w.git.URL("acme/widgets"), App: "docs", Ref: mustRef("refs/heads/" + ref), After: absent}
	}
	w.mustHandle("1-0", events.Change{URL: of("a").URL, App: "docs"})
	w.mustHandle("1-1", events.Change{URL: of("a").URL, App: "docs", Ref: mustRef("refs/heads/known")})
	w.deleteRef("refs/heads/known")
	awaited := state.Awaited{}
	for n, ref := range []string{"a", "b", "c"} {
		awaited.Add(of(ref), fmt.Sprintf("590000-%d", n), false)
	}
	must(t, w.states.SetAwaited(context.Background(), w.repo(), w.job("2-0", of("a")).Fence, awaited))
	w.later += 20 * time.Minute
	main := of("main")
	outcomes := map[string]handlers.Outcome{
		"gone": testenv.Must(w.outcome("590000-0", of("a")))(t), "failed": testenv.Must(w.outcome("590000-9", main))(t),
	}
	w.store(outcomes["gone"])
	late := fmt.Sprintf("%d-0", (20 * time.Minute).Milliseconds())
	for _, tc := range []struct {
		of, entry string
		change    events.Change
		want      events.ResultType // "" if it is not covered
		requests  int
	}{
		{"gone", "590000-1", of("b"), events.ResultRemoved, 2},
		{"gone", "590000-2", of("c"), events.ResultRemoved, 0},
		{"gone", late, of("d"), "", 0},
		{"gone", "3-0", of("there"), "", 0},
		{"gone", "3-0", of("known"), "", 0},
		{"gone", "3-0", main, "", 0},
		{"failed", "3-0", main, events.ResultFailed, 0},
		{"failed", "3-0", of("d"), events.ResultRemoved, 2},
	} {
		var covered handlers.Outcome
		var ok bool
		n := w.asked(func() { covered, ok = outcomes[tc.of].Covers(context.Background(), w.job(tc.entry, tc.change)) })
		if ok != (tc.want != "") || ok && covered.Result.Type != tc.want || len(covered.Changes) > 0 || n > tc.requests {
			t.Errorf("%s, %v: %+v, %v after %d requests", tc.of, tc.change.Ref, covered.Result, ok, n)
		}
		if ok {
			covered.Result.Repo = w.repo()
			w.store(covered)
		}
	}
	if got := w.announcements()["awaited"]; got != "" {
		t.Errorf("the state has %v", got)
	}
}

// TestOldPushIsDeliveredAgain announces a commit that the chain has forgotten.
func TestOldPushIsDeliveredAgain(t *testing.T) {
	other := strings.Replace(absent, "0", "b", 1)
	for name, tc := range map[string]struct {
		before func(first string) string
		app    string
		waits  bool
	}{
		"old":                     {before: func(string) string { return other }, app: "docs"},
		"fresh":                   {before: func(first string) string { return first }, app: "docs", waits: true},
		"without before":          {before: func(string) string { return "" }, app: "docs", waits: true},
		"of an app without a ref": {before: func(string) string { return other }, app: "scan", waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).begin()
			first := w.create(map[string]string{"a": "1"})
			w.mustHandle("1-0", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"})
			change := events.Change{URL: w.git.URL("acme/widgets"), App: tc.app, Before: tc.before(first), After: absent}
			w.awaits("2-0", change)
			w.awaits("2-1", events.Change{URL: change.URL, App: "docs", Ref: mustRef("refs/heads/gone"), After: absent})
			w.later += 2 * time.Minute
			if tc.waits {
				w.awaits("2-0", change)
			} else if r := w.mustHandle("2-0", change); r.Type != events.ResultSynced || !r.Unchanged() {
				t.Errorf("%+v; want nothing new", r)
			}
		})
	}
}

// TestPollEndsTheTroubleOfWhatIsCurrent has the poll after a change that was given up find nothing to do.
func TestPollEndsTheTroubleOfWhatIsCurrent(t *testing.T) {
	for _, ref := range []string{"", "main"} {
		t.Run("watch of "+ref, func(t *testing.T) {
			w := newWorld(t).begin()
			w.create(map[string]string{"a": "1"})
			w.watch("docs", ref)
			w.due("1-0")
			w.later += 20 * time.Minute
			change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs", Watched: true, After: absent}
			if ref != "" {
				change.Ref = mustRef(ref)
			}
			failing := func() int {
				all, _ := testenv.Must(w.states.Load(context.Background(), w.repo()))(t).Failing()
				return len(all)
			}
			if w.mustHandle("2-0", change); failing() != 1 {
				t.Errorf("%d troubles after the change", failing())
			}
			if w.due("1200000-0"); failing() != 0 {
				t.Errorf("%d troubles after the poll", failing())
			}
		})
	}
}

// TestAnnouncementThatIsHandledLate has a worker die with the first of many pushes; the chain does not reach back to it.
func TestAnnouncementThatIsHandledLate(t *testing.T) {
	w := newWorld(t).begin()
	before := w.create(map[string]string{"a": "0"})
	url := w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url, App: "docs"})
	var first events.Change
	for n := range 2 * state.MaxChain {
		commit := w.push(map[string]string{"a": fmt.Sprint(n)})
		change := events.Change{URL: url, App: "docs", Before: before, After: commit}
		if before = commit; n == 0 {
			first = change
			continue
		}
		w.latest = fmt.Sprintf("%d-0", n+3)
		w.mustHandle(w.latest, change)
	}
	if r := w.mustHandle("2-0", first); r.After != before {
		t.Errorf("the first push is settled with %s, want %s", r.After, before)
	}
}

// TestAnnouncedAfterItWasShown announces a commit, without before, that a change without a commit has synced, while one that
// the remote never showed waits.
func TestAnnouncedAfterItWasShown(t *testing.T) {
	w := newWorld(t).begin()
	change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}
	w.create(map[string]string{"a": "0"})
	w.mustHandle("1-0", change)
	announced := func() events.Change {
		announcement := change
		announcement.After = w.push(map[string]string{"a": fmt.Sprint(w.later)})
		return announcement
	}
	w.mustHandle("2-0", announced())
	never := announced()
	never.After = absent
	w.awaits("3-0", never)
	shown := announced()
	w.mustHandle("4-0", change)
	w.mustHandle("5-0", shown)
	if r := w.mustHandle("3-0", never); r.After != shown.After {
		t.Errorf("the commit that was never shown is settled with %s, want %s", r.After, shown.After)
	}
}

// TestAnnouncedLate announces, without before, a commit that another has replaced at the remote long ago. Depth 1 has only
// the hashes of parents.
func TestAnnouncedLate(t *testing.T) {
	for name, tc := range map[string]struct {
		between int  // commits that were never fetched
		forced  bool // the announced commit is in no history
		others  int  // announcements that wait along with it
		early   bool
		before  func(first, tip string) string
		waits   bool
	}{
		"the next one is shown":         {},
		"with before":                   {before: func(first, _ string) string { return first }},
		"the ref moves back":            {before: func(_, tip string) string { return tip }, waits: true},
		"along with others":             {others: 3},
		"within a minute":               {early: true, waits: true},
		"an unknown number is between":  {between: 1, waits: true},
		"it was replaced by force":      {forced: true, waits: true},
		"replaced by force, and others": {forced: true, others: 3, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).begin()
			change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}
			first := w.create(map[string]string{"a": "0"})
			w.mustHandle("1-0", change)
			late := change
			late.After = w.push(map[string]string{"a": "1"})
			if tc.forced {
				late.After = absent
			}
			for n := range tc.between {
				w.push(map[string]string{"b": fmt.Sprint(n)})
			}
			tip := w.push(map[string]string{"a": "2"})
			w.mustHandle("2-0", change)
			if tc.before != nil {
				late.Before = tc.before(first, tip)
			}
			w.awaits("3-0", late)
			for n := range tc.others {
				w.awaits(fmt.Sprintf("3-%d", n+1), events.Change{URL: change.URL, App: "docs", Ref: mustRef("refs/heads/gone"), After: absent})
			}
			if !tc.early {
				w.later += 2 * time.Minute
			}
			if tc.waits {
				w.awaits("3-0", late)
			} else if r := w.mustHandle("3-0", late); r.Type != events.ResultSynced || !r.Unchanged() || r.After != tip {
				t.Errorf("%+v; want nothing new", r)
			}
		})
	}
}
