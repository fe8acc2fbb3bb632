// Package pressure adapts a concurrency limit to the available memory and CPU:
//
//	controller := pressure.Controller{Min: 2, Max: 16, Read: pressure.System().Read, Resize: slots.Resize, Log: log}
//	controller.Run(ctx)
//
// Every 5 s it reads how much of the memory limit is in use, and how long work waited for memory or a processor (Linux' pressure
// stall information). Under pressure the limit shrinks by a quarter, at least by one; when there is none it grows by one. Between the two
// it stays. Work in progress is never interrupted: a smaller limit takes effect as work ends.
// It reads the process' own control group (version 2) and its parents, or the machine if these cannot be read.
// Page cache and other memory that the kernel can reclaim is not counted as used.
//
//	pressure   90 % of the memory, or 10 % of the time stalled for memory, or 80 % for a processor
//	none       less than 75 % of the memory, 2 % and 60 %
//	unknown    all of it, as long as nothing can be read
package pressure
