package app

import (
	"context"
	"os"
	"testing"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestWithoutCellsNoCommandIsSent places a repository, and asks which cells answer, in a deployment without a directory.
func TestWithoutCellsNoCommandIsSent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client()
	trips := &redistest.RoundTrips{}
	client.AddHook(trips)
	cfg := testenv.Must(config.Load(nil, os.DevNull, nil))(t)
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	set := testenv.Must(OpenCells(ctx, cfg, client))(t)
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
