package state_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

func change(t *testing.T, kind events.ChangeType, app, ref string) events.Change {
	t.Helper()
	c := events.Change{ID: "c1", Type: kind, App: app}
	var err error
	if c.Repo, err = events.ParseRepoPath("Acme/Widgets"); err == nil && ref != "" {
		c.Ref, err = events.ParseRef(ref)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestSuccessesRemoveTheFailuresThatTheyDisprove checks for each failure which successes remove it.
func TestSuccessesRemoveTheFailuresThatTheyDisprove(t *testing.T) {
	t.Parallel()
	notes := state.FailureNotes(events.DefaultNamespace)
	const main, topic = "refs/heads/main", "refs/heads/topic"
	pushed := func(app, ref string, class events.Class) string {
		n := notes(change(t, events.ChangePushed, app, ref), events.Result{Type: events.ResultFailed, Class: class}, 1)
		return n.Name
	}
	failures := map[string]string{
		"docs: not found":         pushed("docs", main, events.ClassNotFound),
		"docs: default not found": pushed("docs", "", events.ClassNotFound),
		"docs: main is hostile":   pushed("docs", main, events.ClassHostile),
		"docs: topic is missing":  pushed("docs", topic, events.ClassNoRef),
		"docs: default missing":   pushed("docs", "", events.ClassNoRef),
		"ci: auth":                notes(change(t, events.ChangeDue, "ci", ""), events.Result{Type: events.ResultFailed, Class: events.ClassAuth}, 1).Name,
		"poll":                    notes(change(t, events.ChangeDue, "", ""), events.Result{Type: events.ResultFailed, Class: events.ClassNetwork}, 1).Name,
	}
	onlyAtMain := []string{"docs: not found", "docs: default not found", "docs: main is hostile", "docs: default missing", "poll"}
	resolved := events.Result{Type: events.ResultSynced, Ref: change(t, events.ChangePushed, "", main).Ref}
	for name, tc := range map[string]struct {
		removed *stream.Notes
		want    []string
	}{
		"sync of main":             {notes(change(t, events.ChangePushed, "docs", main), resolved, 1), onlyAtMain},
		"sync of the default":      {notes(change(t, events.ChangePushed, "docs", ""), resolved, 1), onlyAtMain},
		"poll for docs":            {notes(change(t, events.ChangeDue, "docs", ""), events.Result{Type: events.ResultPolled}, 1), []string{"docs: not found", "docs: default not found", "docs: default missing", "poll"}},
		"poll for docs, changes":   {notes(change(t, events.ChangeDue, "docs", ""), events.Result{Type: events.ResultPolled, Due: 1}, 1), []string{"poll"}},
		"poll with changes":        {notes(change(t, events.ChangeDue, "", ""), events.Result{Type: events.ResultPolled, Due: 1}, 1), []string{"poll"}},
		"poll without changes":     {notes(change(t, events.ChangeDue, "", ""), events.Result{Type: events.ResultPolled}, 1), []string{"docs: not found", "docs: default not found", "docs: default missing", "ci: auth", "poll"}},
		"removal":                  {notes(change(t, events.ChangeRemoved, "", ""), events.Result{Type: events.ResultRemoved}, 1), []string{"docs: not found", "docs: default not found", "docs: main is hostile", "docs: topic is missing", "docs: default missing", "ci: auth", "poll"}},
		"removal of topic":         {notes(change(t, events.ChangeRemoved, "", topic), events.Result{Type: events.ResultRemoved}, 1), []string{"docs: topic is missing", "poll"}},
		"main no longer watched":   {notes(change(t, events.ChangePushed, "docs", main), events.Result{Type: events.ResultRemoved, Class: events.ClassUnwatched}, 1), onlyAtMain[:4]},
		"the watch of docs' topic": {state.NotesOf(events.DefaultNamespace, change(t, events.ChangePushed, "", "").Repo, state.UnwatchedNotes("docs", []string{topic}, false)...), []string{"docs: topic is missing"}},
		"all watches of docs":      {state.NotesOf(events.DefaultNamespace, change(t, events.ChangePushed, "", "").Repo, state.UnwatchedNotes("docs", nil, true)...), []string{"docs: not found", "docs: default not found", "docs: main is hostile", "docs: topic is missing", "docs: default missing"}},
	} {
		for failure, note := range failures {
			matches := func(pattern string) bool {
				switch rest, ok := strings.CutPrefix(pattern, "*"); {
				case ok:
					return strings.HasSuffix(note, rest)
				case strings.HasSuffix(pattern, "*"):
					return strings.HasPrefix(note, strings.TrimSuffix(pattern, "*"))
				}
				return pattern == note
			}
			if got, want := slices.ContainsFunc(tc.removed.Remove, matches), slices.Contains(tc.want, failure); got != want {
				t.Errorf("%s removes %q: %v; want %v", name, failure, got, want)
			}
		}
	}
}

func TestFailuresOfARepositoryThatNeverSynced(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	store := state.NewStore(client, events.DefaultNamespace)
	c := change(t, events.ChangePushed, "docs", "refs/heads/main")
	n := state.FailureNotes(events.DefaultNamespace)(c, events.Result{Type: events.ResultFailed, Class: events.ClassNotFound, Error: strings.Repeat("é", 500)}, 3)
	line := func(atMS, nextMS int64) string {
		return fmt.Sprintf("%s\t%d\t%d\t%s", n.Name, atMS, nextMS, n.Text)
	}
	client.HSet(ctx, n.Hash, n.Field, line(1000, 2000)+"\nnot a note\n"+line(3000, 0))
	client.ZAdd(ctx, n.Index, redis.Z{Score: 9, Member: n.Member})

	page, err := store.List(ctx, "", 0, 10)
	if err != nil || len(page.Repos) != 1 || page.Repos[0].Repo != "Acme/Widgets" || len(page.Repos[0].Failing) != 2 {
		t.Fatalf("%+v, %v; want Acme/Widgets with two failures", page, err)
	}
	newest, older := page.Repos[0].Failing[0], page.Repos[0].Failing[1]
	if newest.Next != nil || !newest.At.Equal(time.UnixMilli(3000)) || older.Next == nil || !older.Next.Equal(time.UnixMilli(2000)) {
		t.Errorf("%+v and %+v", newest, older)
	}
	if newest.App != "docs" || newest.Ref != "refs/heads/main" || newest.Operation != "sync" || newest.Class != events.ClassNotFound || newest.Attempts != 3 || newest.Job != "c1" {
		t.Errorf("%+v", newest)
	}
	if len(newest.Error) > 300 || !strings.HasSuffix(newest.Error, "é…") {
		t.Errorf("%d bytes: %s", len(newest.Error), newest.Error)
	}
	failing, err := store.Failing(ctx, 2)
	if err != nil || failing.Total != 1 || len(failing.Repos) != 1 || failing.Repos[0].Repo != "Acme/Widgets" {
		t.Errorf("%+v, %v", failing, err)
	}
}

func TestOldFailuresAreSwept(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	store := state.NewStore(client, events.DefaultNamespace)
	now := client.Time(ctx).Val()
	index := events.DefaultNamespace.Failing()
	fail := func(name string, age time.Duration) string {
		key := string(events.DefaultNamespace) + "repo:" + name
		at := now.Add(-age).UnixMilli()
		client.HSet(ctx, key, "failing", fmt.Sprintf("name\t%d\t0\t{}", at), "fence", "1")
		client.ZAdd(ctx, index, redis.Z{Score: float64(at), Member: name})
		return key
	}
	young := fail("acme/young", time.Minute)
	var old []string
	for i := range 450 {
		old = append(old, fail(fmt.Sprint("acme/old-", i), 2*time.Hour))
	}
	client.Del(ctx, old[0])
	client.Set(ctx, old[1], "no hash", 0)

	if swept, err := store.SweepFailures(ctx, time.Hour); swept != len(old) || err != nil {
		t.Errorf("%d swept, %v; want %d", swept, err, len(old))
	}
	if members := client.ZRange(ctx, index, 0, -1).Val(); !slices.Equal(members, []string{"acme/young"}) {
		t.Errorf("the index has %d repositories", len(members))
	}
	if !client.HExists(ctx, young, "failing").Val() {
		t.Error("the failure of a minute ago was swept")
	}
	if client.HExists(ctx, old[2], "failing").Val() || !client.HExists(ctx, old[2], "fence").Val() {
		t.Error("of an old one, want its state without the failure")
	}
}
