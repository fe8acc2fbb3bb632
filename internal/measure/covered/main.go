// Command covered is lockstep with two signals, to measure what one push crosses: SIGWINCH clears the coverage
// counters, SIGIO writes them to the folder that GOCOVERDIR names: lockstep ignores neither. Build it with go build -cover
// -covermode=atomic.
package main

import (
	"log" //nolint:depguard // for Fatal alone, before there is a logger
	"os"
	"os/signal"
	"runtime/coverage"
	"syscall"

	"lockstep/internal/cli"
	"lockstep/internal/term"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGIO)
	go func() {
		for s := range signals {
			act := coverage.ClearCounters
			if s == syscall.SIGIO {
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
