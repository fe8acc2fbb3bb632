// Command peers lets other Redis locks take part in bench lock, and other stream workers in bench hot. It speaks the worker
// protocols of ../README.md, and shares no code with Lockstep.
//
//	peers redsync|redislock|rueidislock --redis URL --key KEY --waiters N --hold D --duration D
//	peers stock queue|work --redis URL --prefix PREFIX --slots N --work-ms N
//
// It is a separate module, so that these libraries stay out of Lockstep's go.mod.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"
)

// lock is a library's lock on one key. acquire waits for the lock until ctx ends. It may give up earlier, with an error for
// which gaveUp returns true; then the worker calls it again.
type lock interface {
	acquire(ctx context.Context) (release func() error, err error)
	gaveUp(err error) bool
}

// peer opens a library's lock, connected and ready.
type peer struct {
	module string
	open   func(ctx context.Context, redisURL, key string) (lock, error)
}

var peers = map[string]peer{
	"redsync":     {"github.com/go-redsync/redsync/v4", openRedsync},
	"redislock":   {"github.com/bsm/redislock", openRedislock},
	"rueidislock": {"github.com/redis/rueidis", openRueidislock},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want redsync, redislock, rueidislock, stock or stock-results")
	}
	if args[0] == "stock" || args[0] == "stock-results" {
		return runStock(args[1:], args[0] == "stock-results")
	}
	p, ok := peers[args[0]]
	if !ok {
		return fmt.Errorf("%q is none of redsync, redislock, rueidislock, stock, stock-results", args[0])
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	redisURL := flags.String("redis", "", "URL of the Redis to use")
	key := flags.String("key", "", "key to lock")
	w := worker{stdin: os.Stdin, stdout: os.Stdout, version: version(p.module)}
	flags.IntVar(&w.waiters, "waiters", 1, "number of goroutines that contend")
	flags.DurationVar(&w.hold, "hold", 2*time.Millisecond, "how long to hold each grant")
	flags.DurationVar(&w.duration, "duration", time.Second, "how long to contend")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	ctx := context.Background()
	l, err := p.open(ctx, *redisURL, *key)
	if err != nil {
		return err
	}
	return w.run(ctx, l)
}

// version returns the version of a library in this program.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version
		}
	}
	return ""
}
