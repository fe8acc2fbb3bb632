package intake

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
)

func TestJournalKeepsTheNewestOfEachKind(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	recent := func() []Received {
		t.Helper()
		all, err := Recent(t.Context(), client, events.DefaultNamespace)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := recent(); len(all) != 0 {
		t.Fatalf("%+v before the first webhook", all)
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	for round := range 4 { // each journal writes its queue when it is closed
		j := NewJournal(client, events.DefaultNamespace)
		j.every, j.timeout = time.Minute, time.Minute
		for i := range journalAtOnce + 5 {
			j.Record(Received{At: now.Add(time.Duration(round) * time.Second), Source: "hub", Outcome: "unauthorized", Why: fmt.Sprint(round, " ", i)})
		}
		j.Record(Received{At: now.Add(time.Hour), Source: "hub", Outcome: Accepted, Verified: true, Changes: 2, Repo: strings.Repeat("ä", maxJournalText)})
		j.Close()
		j.Record(Received{Source: "late"})
	}
	all := recent()
	verified, refused, skipped := 0, 0, int64(0)
	for _, r := range all {
		if r.Verified {
			verified++
			if len(r.Repo) > maxJournalText || !strings.HasPrefix(r.Repo, "ää") || r.Changes != 2 {
				t.Errorf("recorded %+v", r)
			}
			continue
		}
		refused++
		skipped += r.Skipped
	}
	if verified != 4 || refused != journalRefused || skipped != 10 {
		t.Errorf("%d of forges, %d refused, %d skipped, want 4, %d, and the 5 skipped of each of the two rounds that are kept", verified, refused, skipped, journalRefused)
	}
	if newest := all[0]; !newest.Verified || all[4].Why != "3 104" {
		t.Errorf("the first is %+v, the fifth %+v, want the newest first and the oldest of a burst dropped", newest, all[4])
	}
	if left := client.PTTL(t.Context(), "lockstep:{0}:hooks:refused").Val(); left < journalExpires-time.Minute {
		t.Errorf("expires in %v, want %v", left, journalExpires)
	}
}

func TestJournalWritesByItself(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	j := NewJournal(client, events.DefaultNamespace)
	defer j.Close()
	j.Record(Received{Source: "hub", Outcome: Ignored, Verified: true})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if all, err := Recent(t.Context(), client, events.DefaultNamespace); err == nil && len(all) == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("not recorded")
		}
	}
}

func TestJournalNeverBlocksWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	j := NewJournal(server.Client(), events.DefaultNamespace)
	server.Stop()
	for range 10_000 {
		j.Record(Received{Source: "hub"})
	}
	j.Close()
	if n := len(j.queued[1].entries); n > journalAtOnce {
		t.Errorf("%d are queued, want at most %d", n, journalAtOnce)
	}
}
