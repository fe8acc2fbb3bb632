package stream_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

const (
	noted   = "lockstep:{0}:repo:acme/widgets"
	indexed = "lockstep:{0}:failing"
)

// noteOf returns notes that add one with a name, unless it is empty, and remove those that match the patterns.
func noteOf(name string, remove ...string) *stream.Notes {
	return &stream.Notes{Hash: noted, Field: "failing", Index: indexed, Member: "acme/widgets", Name: name, Text: "a\tb\nc", Remove: remove}
}

// note is a note as kept.
type note struct{ Name, AtMS, NextMS, Text string }

// notes returns the names of the notes, the newest first, and checks that the index has the subject if there are any.
func notes(t *testing.T, server *redistest.Server) (names []string, newest note) {
	t.Helper()
	ctx, client := context.Background(), server.Client()
	var all []note
	for line := range strings.Lines(client.HGet(ctx, noted, "failing").Val()) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 4)
		all = append(all, note{parts[0], parts[1], parts[2], parts[3]})
	}
	slices.Reverse(all)
	for _, n := range all {
		names = append(names, n.Name)
	}
	score, err := client.ZScore(ctx, indexed, "acme/widgets").Result()
	if (err == nil) != (len(all) > 0) {
		t.Errorf("notes %q, and in the index: %v, %v", names, score, err)
	}
	if len(all) > 0 {
		newest = all[0]
	}
	return names, newest
}

func TestEndsOfDeliveriesChangeNotes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	end := func(how func(*stream.Delivery) error) {
		t.Helper()
		publish(t, client, 1)
		if err := how(delivery(t, w.next())); err != nil {
			t.Fatal(err)
		}
	}
	settle := func(n *stream.Notes) func(*stream.Delivery) error {
		return func(d *stream.Delivery) error { return d.Settle(context.Background(), stream.Settlement{Notes: n}) }
	}

	end(func(d *stream.Delivery) error { // a nack tells when the next attempt is due
		d.Note(noteOf("x app"))
		return d.Nack(context.Background(), time.Hour, true)
	})
	names, newest := notes(t, server)
	due := client.ZRangeWithScores(context.Background(), due, 0, 0).Val()
	if !slices.Equal(names, []string{"x app"}) || newest.Text != "a b c" || len(due) != 1 || newest.NextMS != fmt.Sprintf("%.0f", due[0].Score) {
		t.Errorf("%q, %+v; the entry is due at %v", names, newest, due)
	}
	if score := client.ZScore(context.Background(), indexed, "acme/widgets").Val(); newest.AtMS != fmt.Sprintf("%.0f", score) {
		t.Errorf("%+v; indexed at %.0f", newest, score)
	}

	end(settle(noteOf("y app")))
	if names, newest := notes(t, server); !slices.Equal(names, []string{"y app", "x app"}) || newest.NextMS != "0" {
		t.Errorf("%q, %+v", names, newest)
	}
	end(settle(noteOf("x app"))) // replaces that with its name
	end(settle(noteOf("x other")))
	end(settle(noteOf("", "none", "y*", "*none")))
	if names, _ := notes(t, server); !slices.Equal(names, []string{"x other", "x app"}) {
		t.Errorf("%q", names)
	}
	end(settle(noteOf("", "* app")))
	if names, _ := notes(t, server); !slices.Equal(names, []string{"x other"}) {
		t.Errorf("%q", names)
	}
	end(func(d *stream.Delivery) error { // the removal of the hash
		return d.Settle(context.Background(), stream.Settlement{State: []stream.HashUpdate{{Key: noted, Clear: true}}, Notes: noteOf("", "*")})
	})
	if names, _ := notes(t, server); len(names) > 0 {
		t.Errorf("%q after the removal", names)
	}

	for n := range 20 {
		end(settle(noteOf(fmt.Sprint(n))))
	}
	if names, newest := notes(t, server); len(names) != 16 || newest.Name != "19" || names[15] != "4" {
		t.Errorf("%q; want the newest 16", names)
	}
	end(settle(noteOf("", "*")))
	if n := client.Exists(context.Background(), noted, indexed).Val(); n != 0 {
		t.Error("keys without notes are left")
	}
}

// TestNotesOfTheWrongTypeSettleNothing checks that a settlement whose index has another type changes nothing.
func TestNotesOfTheWrongTypeSettleNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	client.Set(context.Background(), indexed, "text", 0)
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	m := w.next()
	if err := delivery(t, m).Settle(context.Background(), stream.Settlement{Notes: noteOf("x")}); err == nil {
		t.Error("settled")
	}
	if n := client.Exists(context.Background(), noted).Val(); n != 0 {
		t.Error("the note was written")
	}
	m.Ack()
}
