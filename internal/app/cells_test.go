package app

import (
	"context"
	"os"
	"testing"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/redistest"
)

// TestWithoutCellsNoCommandIsSent places a repository, and asks which cells answer, in a deployment without a directory.
func TestWithoutCellsNoCommandIsSent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client()
	trips := &redistest.RoundTrips{}
	client.AddHook(trips)
	cfg, err := config.Load(nil, os.DevNull, nil)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	set, err := OpenCells(ctx, cfg, client)
	if err != nil {
		t.Fatal(err)
	}
	cell, err := set.Of(repo)
	answering, missing := set.Answering(ctx)
	if err != nil || cell.Namespace != events.DefaultNamespace || len(answering) != 1 || len(missing) != 0 || !set.IsSingle() {
		t.Errorf("%+v, %v; %v answer, %v do not", cell, err, answering, missing)
	}
	if cfg.Shared() != events.DefaultNamespace {
		t.Errorf("tokens and limits of hosts are below %s", cfg.Shared())
	}
	if n := trips.Load(); n != 0 {
		t.Errorf("%d round trips", n)
	}
	cfg.Cell = cells.Every
	if _, err := OpenCells(ctx, cfg, client); err != cells.ErrNoCells || trips.Load() == 0 {
		t.Errorf("with a directory: %v, %d round trips", err, trips.Load())
	}
}
