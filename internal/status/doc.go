// Package status reads the state of a running service from Redis and prints it: lockstep status, and the
// event lines of lockstep tail. The cost of a read is bounded, whatever the number of repositories.
package status
