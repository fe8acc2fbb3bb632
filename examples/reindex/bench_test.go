package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestTable measures all strategies. Only blue-green is always available.
func TestTable(t *testing.T) {
	testenv.Long(t)
	server := redistest.Start(t)
	b := bench{docs: 2 * page, readers: 2, rounds: 5, pause: time.Millisecond, log: slog.New(slog.DiscardHandler)}
	var out strings.Builder
	if err := b.run(context.Background(), server.Addr, &out); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(rows) != 1+len(strategies) {
		t.Fatalf("the table has %d rows:\n%s", len(rows), &out)
	}
	for _, row := range rows[1:] {
		cells := strings.Fields(row)
		if cells[len(cells)-1] != "10" {
			t.Errorf("want 10 rebuilds: %s", row)
		}
		if strings.Contains(row, "blue-green") && !strings.Contains(row, "100.000 %") {
			t.Errorf("blue-green was not always available: %s", row)
		}
	}
	if left := server.Client().DBSize(context.Background()).Val(); left != 0 {
		t.Errorf("%d keys left behind", left)
	}
}
