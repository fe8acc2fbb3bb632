package feed_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/feed"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestListOfFollowersReadsLittle lists a thousand followers with invented cursors, each before a result of 200 KB, which Redis does not send.
func TestListOfFollowersReadsLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.StartReal(t))
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
	}
	count := func(section, name string) (n int64) {
		info := testenv.Must(w.client.Info(t.Context(), section).Result())(t)
		_, rest, _ := strings.Cut(info, name)
		_, _ = fmt.Sscan(strings.TrimPrefix(rest, ":calls="), &n)
		return n
	}
	sent, reads := count("stats", "total_net_output_bytes:"), count("commandstats", "cmdstat_xrange")
	list := testenv.Must(followers.List(t.Context()))(t)
	if sent = count("stats", "total_net_output_bytes:") - sent; len(list) != 1000 || sent > 1<<20 {
		t.Errorf("%d followers, %d bytes from Redis", len(list), sent)
	}
	if reads = count("commandstats", "cmdstat_xrange") - reads; reads > 10 {
		t.Errorf("the result was read %d times", reads)
	}
	if list[0].LagMS == 0 && list[0].State == feed.FollowerOK {
		t.Errorf("%+v", list[0])
	}
}
