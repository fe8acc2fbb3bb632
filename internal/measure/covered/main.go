// Command covered is lockstep with two signals, to measure what one push crosses: SIGUSR1 clears the coverage
// counters, SIGUSR2 writes them to the folder that GOCOVERDIR names. Build it with go build -cover
// -covermode=atomic.
package main

import (
	"log"
	"os"
	"os/signal"
	"runtime/coverage"
	"syscall"

	"lockstep/internal/cli"
	"lockstep/internal/term"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range signals {
			act := coverage.ClearCounters
			if s == syscall.SIGUSR2 {
				act = func() error { return coverage.WriteCountersDir(os.Getenv("GOCOVERDIR")) }
			}
			if err := act(); err != nil {
				log.Fatal(err)
			}
			log.Println("counters:", s) // the driver waits for this line
		}
	}()
	term.Main(cli.Run)
}
