package pressure

import (
	"context"
	"log/slog"
	"time"
)

// Reading has the pressure on a process, as shares from 0 to 1. An unknown value is 0.
type Reading struct {
	Memory      float64 // of the memory limit that is in use and cannot be reclaimed
	MemoryStall float64 // of the last 10 s in which some work waited for memory
	CPUStall    float64 // of the last 10 s in which some work waited for a processor
}

// The limits of readings. Between relaxed and pressed nothing changes.
var (
	pressed = Reading{Memory: 0.9, MemoryStall: 0.1, CPUStall: 0.8}
	relaxed = Reading{Memory: 0.75, MemoryStall: 0.02, CPUStall: 0.6}
)

const (
	interval = 5 * time.Second
	settling = 2 // steps after a decrease without another one: stalls are averages of 10 s
)

// Controller moves a limit between a minimum and a maximum. It starts at the maximum. All fields but Log are required.
type Controller struct {
	Min, Max int
	Read     func() (Reading, error)
	Resize   func(n int) // called when the limit changes
	Log      *slog.Logger

	lowered int  // below Max
	settle  int  // steps to wait
	failed  bool // the last reading failed
}

// Run adapts the limit until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		c.Step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Step reads once, and moves the limit by one step at most.
func (c *Controller) Step(ctx context.Context) {
	r, err := c.Read()
	if err != nil {
		if !c.failed {
			c.Log.WarnContext(ctx, "memory and CPU pressure not readable, using all slots", "error", err)
		}
		c.failed = true
		c.set(ctx, c.Max, Reading{})
		return
	}
	c.failed = false
	size := c.Max - c.lowered
	switch {
	case r.Memory >= pressed.Memory, c.settle == 0 && (r.MemoryStall >= pressed.MemoryStall || r.CPUStall >= pressed.CPUStall):
		c.settle = settling
		c.set(ctx, max(c.Min, min(size-1, size*3/4)), r)
	case c.settle > 0:
		c.settle--
	case r.Memory < relaxed.Memory && r.MemoryStall < relaxed.MemoryStall && r.CPUStall < relaxed.CPUStall:
		c.set(ctx, min(c.Max, size+1), r)
	}
}

func (c *Controller) set(ctx context.Context, size int, r Reading) {
	old := c.Max - c.lowered
	if size == old {
		return
	}
	c.lowered = c.Max - size
	c.Resize(size)
	level := slog.LevelDebug
	if old == c.Max || size == c.Max || size == c.Min { // the ends of a phase
		level = slog.LevelInfo
	}
	c.Log.Log(ctx, level, "slots changed", "slots", size, "memory", r.Memory, "memory_stall", r.MemoryStall, "cpu_stall", r.CPUStall)
}
