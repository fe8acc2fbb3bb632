// Package bench turns what benchmark processes report into figures. It is arithmetic alone: it
// starts nothing and measures nothing, see lockstep bench for that.
//
// All moments are nanoseconds of CLOCK_MONOTONIC, which all processes of one machine share.
package bench
