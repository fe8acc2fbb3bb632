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
		return n.Add.Name
	}
	failures := map[string]string{
		"docs: not found":         pushed("docs", main, events.ClassNotFound),
		"docs: default not found": pushed("docs", "", events.ClassNotFound),
		"docs: main is hostile":   pushed("docs", main, events.ClassHostile),
		"docs: topic is missing":  pushed("docs", topic, events.ClassNoRef),
		"docs: default missing":   pushed("docs", "", events.ClassNoRef),
		"ci: auth":                notes(change(t, events.ChangeDue, "ci", ""), events.Result{Type: events.ResultFailed, Class: events.ClassAuth}, 1).Add.Name,
		"poll":                    notes(change(t, events.ChangeDue, "", ""), events.Result{Type: events.ResultFailed, Class: events.ClassNetwork}, 1).Add.Name,
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
		return fmt.Sprintf("%s\t%d\t%d\t%s", n.Add.Name, atMS, nextMS, n.Add.Text)
	}
	client.HSet(ctx, n.Hash, n.Field, line(1000, 2000)+"\nnot a note\n"+line(3000, 0))
	for i := range 3 {
		client.ZAdd(ctx, n.Index, redis.Z{Score: float64(i), Member: fmt.Sprintf("acme/gone-%d", i)})
	}
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
		t.Errorf("%+v, %v", failing, err) // a repository in the index that does not fail any more is not counted
	}
	if members := client.ZRange(ctx, n.Index, 0, -1).Val(); !slices.Equal(members, []string{n.Member}) {
		t.Errorf("the index has %q after the list", members)
	}
}

// TestOldFailuresThatNothingTriesAgainAreSwept has failures of an app that watches the repository, of another one, and of nobody's.
func TestOldFailuresThatNothingTriesAgainAreSwept(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	store := state.NewStore(client, events.DefaultNamespace)
	now := client.Time(ctx).Val()
	failed := func(kind events.ChangeType, app string) *stream.Notes {
		return state.FailureNotes(events.DefaultNamespace)(change(t, kind, app, ""), events.Result{Type: events.ResultFailed, Class: events.ClassNotFound}, 1)
	}
	lines := func(age time.Duration, notes ...*stream.Notes) (value string) {
		for _, n := range notes {
			value += fmt.Sprintf("%s\t%d\t0\t%s\n", n.Add.Name, now.Add(-age).UnixMilli(), n.Add.Text)
		}
		return strings.TrimSuffix(value, "\n")
	}
	docs, ci, poll := failed(events.ChangePushed, "docs"), failed(events.ChangePushed, "ci"), failed(events.ChangeDue, "")
	for name, tc := range map[string]struct {
		value    string
		watching []string
		want     []string
	}{
		"watched by docs":      {lines(2*time.Hour, docs, ci, poll), []string{"docs"}, []string{"docs", ""}},
		"watched by nobody":    {lines(2*time.Hour, docs, ci, poll), nil, nil},
		"young":                {lines(time.Minute, docs, ci, poll), nil, []string{"docs", "ci", ""}},
		"young and old":        {lines(2*time.Hour, docs) + "\n" + lines(time.Minute, ci), nil, []string{"ci"}},
		"removed, not indexed": {"", nil, nil},
	} {
		client.FlushAll(ctx)
		if tc.value != "" {
			client.HSet(ctx, docs.Hash, docs.Field, tc.value)
		}
		client.ZAdd(ctx, docs.Index, redis.Z{Score: float64(now.UnixMilli()), Member: docs.Member})
		swept, err := store.SweepFailures(ctx, time.Hour, func(context.Context, events.RepoPath) ([]string, error) { return tc.watching, nil })
		known, loadErr := store.Load(ctx, change(t, events.ChangeDue, "", "").Repo)
		if err != nil || loadErr != nil {
			t.Fatal(err, loadErr)
		}
		var apps []string
		failures, _ := known.Failing()
		for _, f := range failures {
			apps = append(apps, f.App)
		}
		slices.Sort(apps)
		slices.Sort(tc.want)
		if total := len(stream.ParseNotes(tc.value)); !slices.Equal(apps, tc.want) || swept != total-len(tc.want) {
			t.Errorf("%s: failures of %q are left, %d swept; want %q", name, apps, swept, tc.want)
		}
		if n := client.ZCard(ctx, docs.Index).Val(); (n == 1) != (len(tc.want) > 0) {
			t.Errorf("%s: the index has %d repositories", name, n)
		}
	}
}
