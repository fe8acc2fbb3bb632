package app

import (
	"context"
	"log/slog"
	"sync"

	"lockstep/internal/pressure"
	"lockstep/router"
)

// adaptSlots moves the number of slots between slots-min and slots, and runs report, until ctx is done. Without slots-min it does nothing.
func adaptSlots(
	ctx context.Context, background *sync.WaitGroup, cfg Config, slots *router.Slots, read func() (pressure.Reading, error), log *slog.Logger,
	report func(ctx context.Context, slots func() int, configured int),
) {
	if cfg.SlotsMin == 0 || cfg.SlotsMin == cfg.Slots {
		return
	}
	controller := pressure.Controller{Min: cfg.SlotsMin, Max: cfg.Slots, Read: read, Resize: slots.Resize, Log: log}
	background.Go(func() { controller.Run(ctx) })
	background.Go(func() { report(ctx, slots.Size, cfg.Slots) })
}
