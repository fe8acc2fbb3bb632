package operate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/operate"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestLettersOfAllCells has the letters 1 and 4 in one cell, 2 and 4 in another one.
func TestLettersOfAllCells(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.Start(t).Client()
	directory, err := cells.OpenOrNew(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	for cell, ids := range map[string][]string{"eu-1": {"1-0", "4-0"}, "eu-2": {"2-0", "4-0"}} {
		if _, failed := directory.Add(ctx, cell, "", 0); failed != nil {
			t.Fatal(failed)
		}
		for _, id := range ids {
			if err := client.XAdd(ctx, &redis.XAddArgs{Stream: cells.PrefixOf(cell).Dead(), ID: id, Values: []string{"stream", cells.PrefixOf(cell).Changes(), "original:a", "1"}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	letters, q := &operate.Letters{Cells: cells.All(client, directory)}, operate.LetterQuery{Limit: 1}
	for _, want := range []string{"eu-1 4-0", "eu-1 1-0", "", "eu-2 4-0", "eu-2 2-0"} { // a full page may be the last
		page, err := letters.Page(ctx, q)
		if got := append(page.Letters, operate.Letter{})[0]; err != nil || strings.TrimSpace(got.Cell+" "+got.ID) != want {
			t.Errorf("page after %q: %v, %v, want %s", q.After, page, err, want)
		}
		q.After = page.Next
	}
	oldest, more, missing, err := letters.List(ctx, operate.LetterQuery{Oldest: true, Limit: 2})
	if len(oldest) != 2 || oldest[0].ID != "1-0" || oldest[1].ID != "2-0" || !more || len(missing) > 0 || err != nil {
		t.Errorf("the oldest two of all: %v, %v, %v, %v", oldest, more, missing, err)
	}
	for of, want := range map[[2]string]error{
		{"", "1-0"}: nil, {"", "4-0"}: operate.ErrSeveralLetters, {"eu-2", "4-0"}: nil, {"eu-2", "1-0"}: stream.ErrNoLetter,
		{"eu-9", "4-0"}: stream.ErrNoLetter, {"", "3-0"}: stream.ErrNoLetter, {"", "x"}: stream.ErrBadID,
	} {
		if letter, err := letters.Get(ctx, of[0], of[1]); !errors.Is(err, want) || err == nil && letter.ID != of[1] {
			t.Errorf("letter %v: %v, %v, want %v", of, letter, err, want)
		}
	}
	done, err := letters.RetryAll(ctx, append(oldest, operate.Letter{ID: "3-0"}, operate.Letter{ID: "4-0"}))
	if len(done.Retried) != 2 || fmt.Sprint(done.Refused) != "[{3-0   no such dead letter: 3-0 true} {4-0   no such dead letter: 4-0 true}]" || err != nil {
		t.Errorf("retried %v, %v", done, err)
	}
	for _, after := range []string{"7", "1-0", "x:", "-1:"} {
		if page, err := letters.Page(ctx, operate.LetterQuery{After: after}); !errors.Is(err, stream.ErrBadID) {
			t.Errorf("page after %q: %v, %v", after, page, err)
		}
	}
	if found, missing, err := letters.Find(ctx, []string{"9-0", "2-0"}); len(found) != 0 || len(missing) != 0 || err != nil {
		t.Errorf("found %v, %v, %v, want none", found, missing, err)
	}
	if _, _, err := letters.Find(ctx, []string{"9-0", "4-0"}); !errors.Is(err, operate.ErrSeveralLetters) || !strings.Contains(err.Error(), "4-0 is in eu-1 and eu-2") {
		t.Errorf("a letter of two cells: %v", err)
	}
	if n, err := letters.DropAll(ctx, []operate.Letter{{ID: "1-0"}, {ID: "4-0", Cell: "eu-1"}, {ID: "4-0", Cell: "eu-2"}}); n != 2 || err != nil {
		t.Errorf("dropped %d, %v", n, err)
	}
}
