package feed_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/feed"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

const lostCursor = "MSBBQkNERUZHSElKS0xNTk9QIDAtMCAw" // of a stream that does not exist

func TestFollowers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	followers := feed.NewFollowers(w.client, "", events.DefaultNamespace, events.DefaultNamespace)
	list := func() (text []string) {
		t.Helper()
		for _, f := range testenv.Must(followers.List(t.Context()))(t) {
			lag := "lag"
			if f.LagMS <= 0 {
				lag = fmt.Sprint(f.LagMS)
			}
			if time.Since(f.Seen).Abs() > time.Minute {
				t.Errorf("%s reported %v", f.Name, f.Seen)
			}
			text = append(text, fmt.Sprintf("%s/%s %d/%d %s %s: %s", f.App, f.Name, f.Behind, f.Repos, lag, f.Version, f.State))
		}
		return text
	}
	if got := list(); len(got) != 0 {
		t.Errorf("%q", got)
	}
	_, secret, err := w.tokens.Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	cursor := func() string {
		t.Helper()
		return testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()
	}
	put := func(app, name, token string, report feed.Report) {
		t.Helper()
		if err := followers.Put(t.Context(), app, name, token, report); err != nil {
			t.Fatal(err)
		}
	}
	first := cursor()
	put("docs", "node-1", access.HashOf(secret), feed.Report{Cursor: first, Repos: 50, Behind: 3, Version: "v1.2.3"})
	put("docs", "node-2", access.HashOf(secret), feed.Report{Cursor: lostCursor, Repos: 1})
	put("", "node-1", "", feed.Report{Cursor: first, Repos: 7})
	w.add("docs", "acme/widgets")
	put("", "node-1", "", feed.Report{Cursor: cursor(), Repos: 8})
	deadline := time.Now().Add(time.Second)
	for time.Now().Before(deadline) && !strings.Contains(fmt.Sprint(list()), "node-1 3/50 lag") { // until the result is a millisecond old
	}
	if got, want := fmt.Sprintf("%q", list()), `["docs/node-2 0/1 -1 : lists anew" "docs/node-1 3/50 lag v1.2.3: behind" "/node-1 0/8 0 : ok"]`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestStatesOfFollowers tells what is wrong with a follower.
func TestStatesOfFollowers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	followers := feed.NewFollowers(w.client, "", events.DefaultNamespace, events.DefaultNamespace)
	at := testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t)
	made, secret, err := w.tokens.Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, token string, report feed.Report) {
		t.Helper()
		if err := followers.Put(t.Context(), "docs", name, token, report); err != nil {
			t.Fatal(err)
		}
	}
	state := func(name string) feed.Follower {
		t.Helper()
		for _, f := range testenv.Must(followers.List(t.Context()))(t) {
			if f.Name == name {
				return f
			}
		}
		t.Fatalf("%s is not listed", name)
		return feed.Follower{}
	}
	age := func(name string, by time.Duration) { // of the report
		t.Helper()
		key := string(events.DefaultNamespace) + "followers:of:docs"
		_, rest, _ := strings.Cut(testenv.Must(w.client.HGet(t.Context(), key, name).Result())(t), " ")
		testenv.Must(0, w.client.HSet(t.Context(), key, name, fmt.Sprint(time.Now().Add(-by).UnixMilli(), " ", rest)).Err())(t)
	}
	good := feed.Report{Cursor: at.String(), Repos: 1}
	put("ok", "", good)
	put("behind", "", feed.Report{Cursor: at.String(), Repos: 1, Behind: 1})
	put("first", "", feed.Report{Repos: 1})
	put("anew", "", feed.Report{Cursor: lostCursor})
	put("away", "", good)
	age("away", 3*time.Hour)
	put("revoked", access.HashOf(secret), good)
	age("revoked", 3*time.Hour)
	testenv.Must(w.tokens.Remove(t.Context(), made.ID))(t)
	for name, want := range map[string]feed.FollowerState{
		"ok": feed.FollowerOK, "behind": feed.FollowerBehind, "first": feed.FollowerFirst, "anew": feed.FollowerAnew,
		"away": feed.FollowerAway, "revoked": feed.FollowerRevoked,
	} {
		if got := state(name).State; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := state("ok").Entry + state("first").Entry + state("anew").Entry; got != "" { // nothing was applied yet
		t.Errorf("entries %q", got)
	}
	put("revoked", "", good) // with another token
	if got := state("revoked").State; got != feed.FollowerOK {
		t.Errorf("with another token: %q", got)
	}
	old := fmt.Sprintf("%d-0", time.Now().Add(-2*time.Minute).UnixMilli())
	testenv.Must(w.client.XAdd(t.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Results(), ID: old, Values: []string{"payload", "{}"}}).Result())(t)
	if got := state("ok"); got.State != feed.FollowerBehind || got.LagMS < 100_000 {
		t.Errorf("without what is two minutes old: %+v", got)
	}
}

// ofCells returns a cursor with positions in so many cells.
func ofCells(n int) string {
	text := "1"
	for i := range n {
		text += fmt.Sprintf(" c%03d ABCDEFGHIJKLMNOP 1795223511201-0 1", i)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	followers := feed.NewFollowers(w.client, "", events.DefaultNamespace, events.DefaultNamespace)
	good := feed.Report{Cursor: testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()}
	for name, edit := range map[string]func(*feed.Report){
		"a bad cursor": func(r *feed.Report) { r.Cursor = "1-0" },
		"many cells":   func(r *feed.Report) { r.Cursor = ofCells(300) },
		"repos":        func(r *feed.Report) { r.Repos = -1 },
		"behind":       func(r *feed.Report) { r.Behind = 1 << 40 },
		"version":      func(r *feed.Report) { r.Version = "\x1b[2J" },
		"long version": func(r *feed.Report) { r.Version = strings.Repeat("1", 101) },
	} {
		report := good
		edit(&report)
		if err := followers.Put(t.Context(), "docs", "n", "", report); !errors.Is(err, feed.ErrBadReport) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "a b", "a/b", "..", strings.Repeat("a", 101), "a\n"} {
		if err := followers.Put(t.Context(), "docs", name, "", good); !errors.Is(err, feed.ErrBadReport) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	key := string(events.DefaultNamespace) + "followers:of:docs"
	for i := range 1000 {
		if err := followers.Put(t.Context(), "docs", fmt.Sprint("n", i), "", good); err != nil {
			t.Fatal(err)
		}
	}
	full := func() error { return followers.Put(t.Context(), "docs", "another", "", good) }
	if err := full(); !errors.Is(err, feed.ErrTooManyFollowers) {
		t.Errorf("the 1,001st: %v", err)
	}
	if err := followers.Put(t.Context(), "docs", "n7", "", good); err != nil {
		t.Errorf("a known one: %v", err)
	}
	if err := followers.Put(t.Context(), "scan", "n", "", good); err != nil {
		t.Errorf("of another app: %v", err)
	}
	old := time.Now().Add(-8 * 24 * time.Hour).UnixMilli()
	testenv.Must(0, w.client.HSet(t.Context(), key, "n1", fmt.Sprintf("%d - {}", old), "n2", "x").Err())(t)
	if n := len(testenv.Must(followers.List(t.Context()))(t)); n != 999 {
		t.Errorf("%d followers, want those of seven days", n)
	}
	testenv.Must(0, w.client.ZAdd(t.Context(), string(events.DefaultNamespace)+"followers:seen:docs", redis.Z{Score: float64(old), Member: "n1"}).Err())(t)
	if err := full(); err != nil {
		t.Errorf("after one has expired: %v", err)
	}
	if ttl := testenv.Must(w.client.TTL(t.Context(), key).Result())(t); ttl < 6*24*time.Hour || ttl > 8*24*time.Hour {
		t.Errorf("kept for %v", ttl)
	}
}

// TestFollowersOfACell has the tokens below the prefix of the directory, in another slot.
func TestFollowersOfACell(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	const directory = events.Namespace("lockstep:{dir}:")
	followers := feed.NewFollowers(w.client, "", events.DefaultNamespace, directory)
	tokens := access.NewTokens(w.client, directory)
	token, secret, err := tokens.Create(t.Context(), "docs")
	if err != nil {
		t.Fatal(err)
	}
	report := feed.Report{Cursor: testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()}
	testenv.Must(0, followers.Put(t.Context(), "docs", "n", access.HashOf(secret), report))(t)
	if all := testenv.Must(followers.List(t.Context()))(t); len(all) != 1 || all[0].State != feed.FollowerOK {
		t.Errorf("%+v", all)
	}
	testenv.Must(tokens.Remove(t.Context(), token.ID))(t)
	if all := testenv.Must(followers.List(t.Context()))(t); len(all) != 1 || all[0].State != feed.FollowerRevoked {
		t.Errorf("without its token: %+v", all)
	}
}
