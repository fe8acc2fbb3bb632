// Command peers lets other locks take part in bench lock, and other workers in bench hot and stream --settle. It speaks the
// worker protocols of ../README.md, and shares no code with Lockstep.
//
//	peers redsync|etcd --redis URL --key KEY --waiters N --hold D --duration D
//	peers hashed|jetstream queue|work --redis URL --prefix PREFIX --slots N --work-ms N
//
// It is a separate module, so that these libraries stay out of the other go.mod files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
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
	"redsync": {"github.com/go-redsync/redsync/v4", openRedsync},
	"etcd":    {"go.etcd.io/etcd/server/v3", openEtcd},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	contestants := map[string]contestant{"hashed": hashed, "jetstream": jetStream}
	names := slices.Sorted(maps.Keys(contestants))
	names = slices.AppendSeq(names, maps.Keys(peers))
	if len(args) == 0 {
		return fmt.Errorf("want one of %q", names)
	}
	if c, ok := contestants[args[0]]; ok {
		return runContestant(c, args[1:])
	}
	p, ok := peers[args[0]]
	if !ok {
		return fmt.Errorf("%q is none of %q", args[0], names)
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
	err = w.run(ctx, l)
	if closer, ok := l.(io.Closer); ok {
		err = errors.Join(err, closer.Close())
	}
	return err
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
