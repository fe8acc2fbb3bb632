package feed_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/feed"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// inventedCursor returns a well-formed cursor with the given one and positions in cells that do not exist, of about 60 KB.
func inventedCursor(real string) string {
	text, _ := base64.RawURLEncoding.DecodeString(real)
	_, at, _ := strings.Cut(string(text), " ")
	var invented strings.Builder
	invented.WriteString("1")
	if real != "" {
		fmt.Fprintf(&invented, " a %s", at)
	}
	for i := range 900 {
		fmt.Fprintf(&invented, " c%03d ABCDEFGHIJKLMNOP 1795223511201-0 1", i)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(invented.String()))
}

// TestReportsHaveCellsOfTheDeploymentOnly reports cursors with positions in cells that do not exist: Redis gets none of them.
func TestReportsHaveCellsOfTheDeploymentOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t))
	at := testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()
	single := feed.NewFollowers(w.client, "", events.DefaultNamespace, events.DefaultNamespace)
	cells := feed.NewFollowers(w.client, "a", events.DefaultNamespace, events.DefaultNamespace)
	cells.Cells = func() []string { return []string{"a", "b"} }
	stored := func(name string) string {
		return testenv.Must(w.client.HGet(t.Context(), string(events.DefaultNamespace)+"followers:of:docs", name).Result())(t)
	}
	for name, tc := range map[string]struct {
		followers *feed.Followers
		cursor    string
		ok        bool
	}{
		"none":                        {single, "", true},
		"own":                         {single, at, true},
		"invented":                    {single, inventedCursor(""), false},
		"invented-with-cells":         {cells, inventedCursor(""), false},
		"own-and-invented-with-cells": {cells, inventedCursor(at), true},
		"own-of-before-with-cells":    {cells, at, true},
		"another-version":             {single, "MiBhIGIgYw", false},
	} {
		err := tc.followers.Put(t.Context(), "docs", name, "", feed.Report{Cursor: tc.cursor})
		switch {
		case !tc.ok && !errors.Is(err, feed.ErrBadReport):
			t.Errorf("%s: %v, want %v", name, err, feed.ErrBadReport)
		case tc.ok && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.ok && len(stored(name)) > 300:
			t.Errorf("%s: %d bytes are stored", name, len(stored(name)))
		}
	}
	states := map[string]feed.FollowerState{}
	for _, one := range testenv.Must(cells.List(t.Context()))(t) {
		states[one.Name] = one.State
	}
	if got := states["own-and-invented-with-cells"]; got != feed.FollowerOK {
		t.Errorf("%v", states)
	}
}

// commands returns how often Redis has run each command, also within scripts.
func commands(t *testing.T, w *world) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for line := range strings.Lines(testenv.Must(w.client.Info(t.Context(), "commandstats").Result())(t)) {
		name, stats, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if calls, _, _ := strings.Cut(stats, ","); ok {
			counts[name], _ = strconv.Atoi(calls)
		}
	}
	return counts
}

// TestFullAppIsRefusedCheaply reports more names than an app may have: Redis reads the stored reports once, and not for each of them.
func TestFullAppIsRefusedCheaply(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.StartReal(t))
	good := feed.Report{Cursor: testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()}
	put := func(name string) error { // in another process each time
		return feed.NewFollowers(w.client, "", events.DefaultNamespace, events.DefaultNamespace).Put(t.Context(), "docs", name, "", good)
	}
	for i := range 1000 {
		if err := put(fmt.Sprint("n", i)); err != nil {
			t.Fatal(err)
		}
	}
	before := commands(t, w)
	for i := range 100 {
		if err := put(fmt.Sprint("more", i)); !errors.Is(err, feed.ErrTooManyFollowers) {
			t.Fatal(err)
		}
	}
	after := commands(t, w)
	if lists, scans := after["hgetall"]-before["hgetall"], after["hscan"]-before["hscan"]; lists > 0 || scans > 20 {
		t.Errorf("%d HGETALL and %d HSCAN for 100 refused reports", lists, scans)
	}
	if err := put("n7"); err != nil {
		t.Errorf("a known one: %v", err)
	}
}

// TestListOfFollowersReadsLittle lists a thousand followers with invented cursors, each before a result of 200 KB: Redis sends neither the results
// nor long reports.
func TestListOfFollowersReadsLittle(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	w := newWorld(t, server)
	w.watch("docs", "acme/widgets", "")
	at := testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()
	files := make([]events.File, 2000)
	for i := range files {
		files[i] = events.File{Path: fmt.Sprintf("%080d", i), Status: events.FileModified}
	}
	w.add("docs", "acme/widgets", func(r *events.Result) { r.Files = files })
	followers := feed.NewFollowers(w.client, "", events.DefaultNamespace, events.DefaultNamespace)
	text, _ := base64.RawURLEncoding.DecodeString(at)
	fields := strings.Fields(string(text))
	for i := range 1000 {
		id := fmt.Sprintf("%d-%d", i+1, i)
		if i == 999 {
			id = "18446744073709551615-18446744073709551615"
		}
		cursor := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "1 %s %s 0", fields[1], id))
		if err := followers.Put(t.Context(), "docs", fmt.Sprint("n", i), "", feed.Report{Cursor: cursor}); err != nil {
			t.Fatal(err)
		}
		if err := followers.Put(t.Context(), "docs", fmt.Sprint("n", i), "", feed.Report{Cursor: inventedCursor("")}); err != nil && !errors.Is(err, feed.ErrBadReport) {
			t.Fatal(err)
		}
	}
	sent := func() (bytes int64) {
		info := testenv.Must(w.client.Info(t.Context(), "stats").Result())(t)
		_, rest, _ := strings.Cut(info, "total_net_output_bytes:")
		_, _ = fmt.Sscan(rest, &bytes)
		return bytes
	}
	before, calls := sent(), commands(t, w)["xrange"]
	list := testenv.Must(followers.List(t.Context()))(t)
	if read := sent() - before; len(list) != 1000 || read > 1<<20 {
		t.Errorf("%d followers, %d bytes from Redis", len(list), read)
	}
	if reads := commands(t, w)["xrange"] - calls; reads > 10 {
		t.Errorf("the result was read %d times", reads)
	}
	if list[0].LagMS == 0 && list[0].State == feed.FollowerOK {
		t.Errorf("%+v", list[0])
	}
}
