package stream_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func deadLetters(t testing.TB, client redis.UniversalClient) *stream.DeadLetters {
	t.Helper()
	return stream.NewDeadLetters(client, "")
}

// giveUp dead-letters the next n messages of a worker.
func giveUp(t testing.TB, w *worker, n int, reason string) {
	t.Helper()
	for range n {
		m := w.next()
		if err := delivery(t, m).DeadLetter(context.Background(), reason, events.ClassAuth, "remote says no", stream.Settlement{}); err != nil {
			t.Fatal(err)
		}
		m.Ack()
	}
}

func list(t testing.TB, d *stream.DeadLetters, q stream.Query) []stream.Letter {
	t.Helper()
	page, _ := listPage(t, d, q)
	return page
}

func listPage(t testing.TB, d *stream.DeadLetters, q stream.Query) (page []stream.Letter, next string) {
	t.Helper()
	page, next, err := d.List(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return page, next
}

func TestRetriedLetterIsTheSameMessage(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	before := entries(t, client, topic)[0]
	giveUp(t, w, 1, "attempts used up")
	d := deadLetters(t, client)
	letter := list(t, d, stream.Query{})[0]
	if letter.Reason != "attempts used up" || letter.Error != "remote says no" || letter.Attempts != 1 || letter.Stream != topic ||
		letter.Group != group || letter.Consumer != "a" || letter.Entry != before.ID || letter.At.IsZero() || letter.Truncated != "" {
		t.Errorf("letter %+v", letter)
	}
	if m, err := letter.Message(); err != nil || m.UUID != "m0" || string(m.Payload) != `{"n":0}` || m.Metadata.Get("kept") != "yes" {
		t.Errorf("its message: %+v, %v", m, err)
	}
	if got, err := d.Get(ctx, letter.ID); err != nil || got.Entry != letter.Entry {
		t.Errorf("got %+v, %v", got, err)
	}

	to, entry, err := d.Retry(ctx, letter.ID)
	if err != nil || to != topic || entry == before.ID {
		t.Fatalf("retried to %s as %s, %v", to, entry, err)
	}
	if _, _, err := d.Retry(ctx, letter.ID); !errors.Is(err, stream.ErrNoLetter) {
		t.Fatalf("retried again: %v; want it once", err)
	}
	if length(t, client, dead) != 0 {
		t.Error("the letter is still there")
	}
	all := entries(t, client, topic)
	if again := all[len(all)-1]; again.ID != entry || !maps.Equal(again.Values, before.Values) {
		t.Errorf("entry %+v; want the fields of %+v", again, before)
	}
	m := w.next()
	if d := delivery(t, m); m.UUID != "m0" || m.Metadata.Get("kept") != "yes" || d.Attempt() != 1 {
		t.Errorf("message %s, attempt %d; want m0 as if for the first time", m.UUID, d.Attempt())
	}
	m.Ack()
	clean(t, client)
}

func TestConcurrentRetriesRetryALetterOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 20)
	giveUp(t, w, 20, "r")
	var ids []string
	for _, l := range list(t, deadLetters(t, client), stream.Query{}) {
		ids = append(ids, l.ID)
	}
	var wg sync.WaitGroup
	for range 4 {
		d := deadLetters(t, server.Client())
		wg.Go(func() {
			for _, id := range ids {
				if _, _, err := d.Retry(ctx, id); err != nil && !errors.Is(err, stream.ErrNoLetter) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for range 20 {
		m := w.next()
		seen[m.UUID]++
		m.Ack()
	}
	clean(t, client)
	if len(seen) != 20 || length(t, client, topic) != 40 || length(t, client, dead) != 0 {
		t.Errorf("%d messages came again, %d entries, %d letters; want 20, 40, 0", len(seen), length(t, client, topic), length(t, client, dead))
	}
}

func TestIncompleteLettersAreNotRetried(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, tc := range map[string]struct {
		letter []string
		err    error
		says   string
	}{
		"truncated":          {[]string{"stream", topic, "truncated", "1000 of 1200 fields", "original:a", "1"}, stream.ErrNotRetryable, "1000 of 1200 fields"},
		"without fields":     {[]string{"stream", topic, "reason", "r"}, stream.ErrNotRetryable, "is empty"},
		"from another place": {[]string{"stream", "somebody's:key", "original:a", "1"}, stream.ErrNotRetryable, "does not have the prefix lockstep:{0}:"},
		"not a letter":       {[]string{"hello", "world"}, stream.ErrNotRetryable, "prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			client := redistest.Start(t).Client()
			id := client.XAdd(ctx, &redis.XAddArgs{Stream: dead, Values: tc.letter}).Val()
			_, _, err := deadLetters(t, client).Retry(ctx, id)
			if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%v; want %v with %q", err, tc.err, tc.says)
			}
			if length(t, client, dead) != 1 || client.Exists(ctx, topic, "somebody's:key").Val() != 0 {
				t.Error("something has changed")
			}
		})
	}
}

func TestInvalidLetterIDsAreRejected(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client()
	client.XAdd(ctx, &redis.XAddArgs{Stream: dead, ID: "5-0", Values: []string{"reason", "r"}})
	d := deadLetters(t, client)
	for _, id := range []string{"", "-", "+", "5", "5-", "(5-0", "5-0-0", "x-1"} {
		if _, err := d.Get(ctx, id); !errors.Is(err, stream.ErrBadID) {
			t.Errorf("get %q: %v; want ErrBadID", id, err)
		}
		if _, err := d.Drop(ctx, id); !errors.Is(err, stream.ErrBadID) {
			t.Errorf("drop %q: %v; want ErrBadID", id, err)
		}
		if _, _, err := d.Retry(ctx, id); !errors.Is(err, stream.ErrBadID) {
			t.Errorf("retry %q: %v; want ErrBadID", id, err)
		}
	}
	if _, err := d.Get(ctx, "6-0"); !errors.Is(err, stream.ErrNoLetter) {
		t.Errorf("get one that is not there: %v; want ErrNoLetter", err)
	}
	if n := length(t, client, dead); n != 1 {
		t.Errorf("%d letters; want the one", n)
	}
}

func TestListPagesAndFiltersLetters(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client()
	const letters = 350
	pipe := client.Pipeline()
	for i := range letters {
		reason := "odd"
		if i%2 == 0 {
			reason = "even"
		}
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: dead, ID: fmt.Sprintf("%d-0", i+1), Values: []string{"reason", reason, "original:n", fmt.Sprint(i)}})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	d := deadLetters(t, client)
	for name, tc := range map[string]struct {
		query       stream.Query
		want        int
		first, last string
	}{
		"newest first":    {stream.Query{}, letters, "350-0", "1-0"},
		"oldest first":    {stream.Query{Oldest: true}, letters, "1-0", "350-0"},
		"pages of one":    {stream.Query{Limit: 1}, letters, "350-0", "1-0"},
		"one big page":    {stream.Query{Limit: 1000}, letters, "350-0", "1-0"},
		"by reason":       {stream.Query{Reason: "even", Limit: 7}, letters / 2, "349-0", "1-0"},
		"by its contents": {stream.Query{Match: func(l stream.Letter) bool { return l.Original["n"] == "41" }}, 1, "42-0", "42-0"},
		"none":            {stream.Query{Reason: "none"}, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for pages := 0; ; pages++ {
				page, next := listPage(t, d, tc.query)
				for _, l := range page {
					got = append(got, l.ID)
				}
				if tc.query.After = next; next == "" {
					break
				}
				if pages > letters {
					t.Fatal("the pages do not end")
				}
			}
			if len(got) != tc.want || tc.want > 0 && (got[0] != tc.first || got[len(got)-1] != tc.last) {
				t.Errorf("%d letters: %v; want %d from %s to %s", len(got), got, tc.want, tc.first, tc.last)
			}
		})
	}
	if _, _, err := d.List(ctx, stream.Query{Limit: 1001}); err == nil {
		t.Error("a page without bounds is given")
	}
	if _, _, err := d.List(ctx, stream.Query{After: "x"}); !errors.Is(err, stream.ErrBadID) {
		t.Error("a page behind nothing is given")
	}
	if n, err := d.Drop(ctx, "1-0", "2-0", "1-0", "999-0"); err != nil || n != 2 || length(t, client, dead) != letters-2 {
		t.Errorf("dropped %d, %v; want 2", n, err)
	}
}

func TestLetterWithManyFieldsIsRetriedCompletely(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	values := make([]string, 0, 2000)
	for i := range 1000 {
		values = append(values, fmt.Sprintf("f%d", i), "\x00\xff"[i%2:])
	}
	values[1] = "text"
	client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: values}) // cannot be decoded: not text
	eventually(t, "it is a dead letter", func() bool { return length(t, client, dead) == 1 })
	d := deadLetters(t, client)
	letter := list(t, d, stream.Query{})[0]
	if _, err := letter.Message(); err == nil || letter.Reason != "undecodable" || len(letter.Original) != 1000 {
		t.Errorf("%s, %d fields, %v; want undecodable, 1000, an error", letter.Reason, len(letter.Original), err)
	}
	if err := w.Close(); err != nil { // so that no worker reads the retried entry
		t.Fatal(err)
	}
	if _, _, err := d.Retry(ctx, letter.ID); err != nil {
		t.Fatal(err)
	}
	all := entries(t, client, topic)
	if got := all[len(all)-1].Values; len(got) != 1000 || got["f1"] != "\xff" {
		t.Errorf("%d fields", len(got))
	}
}

func TestPageOfLargeLettersIsShort(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client()
	const letters = 300
	large := strings.Repeat("x", 256<<10)
	for i := range letters { // not in one write of 75 MiB, which a busy Redis may not read in time
		add := &redis.XAddArgs{Stream: dead, ID: fmt.Sprintf("%d-0", i+1), Values: []string{"reason", "r", "original:payload", large}}
		if err := client.XAdd(ctx, add).Err(); err != nil {
			t.Fatal(err)
		}
	}
	d := deadLetters(t, client)
	page, next := listPage(t, d, stream.Query{Limit: 1000})
	if n := len(page); n >= letters || next == "" {
		t.Fatalf("%d letters of 256 KiB at once, next %q", n, next)
	}
	n := len(page)
	for next != "" {
		page, next = listPage(t, d, stream.Query{Limit: 1000, After: next})
		n += len(page)
	}
	if n != letters {
		t.Errorf("%d letters in all pages; want %d", n, letters)
	}
}
