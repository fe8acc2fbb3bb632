// Command domain-refresh periodically resolves domains, with at most one refresh per domain at a time: a cron tick skips a
// domain that is being refreshed, a manual trigger waits. Any number of processes may share the work. It only uses
// Lockstep's public packages and does not involve Git. Without -redis, run starts an embedded Redis and prints its address
// for the other commands.
//
//	domain-refresh run example.com example.org
//	domain-refresh -redis 127.0.0.1:6379 run example.com example.org
//	domain-refresh -redis 127.0.0.1:6379 trigger example.com
//	domain-refresh -redis 127.0.0.1:6379 status
//	domain-refresh -redis 127.0.0.1:6379 release example.com
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"lockstep/examples/internal/redisserver"
	"lockstep/locking"
)

func main() {
	address := flag.String("redis", "", "`address` of the Redis (default: run starts an embedded one)")
	every := flag.Duration("every", time.Minute, "interval between refreshes of a domain")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: domain-refresh [flags] run DOMAIN… | trigger DOMAIN | status | release DOMAIN")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Stdout, *address, *every, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "domain-refresh:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, out io.Writer, address string, every time.Duration, args []string) error {
	if len(args) == 0 {
		return errors.New("missing command: run, trigger, status or release")
	}
	if address == "" && args[0] != "run" {
		return fmt.Errorf("%s needs -redis, with the address that run prints", args[0])
	}
	server, err := redisserver.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer server.Close()
	if address == "" {
		fmt.Fprintf(out, "embedded Redis at %s; give the other commands -redis %[1]s\n", server.Address)
	}
	client := server.Open()
	defer client.Close()
	inspector := locking.NewInspector(client, locks)
	switch verb, domains := args[0], args[1:]; {
	case verb == "run" && len(domains) > 0:
		s := service{open: server.Open, log: slog.Default(), refresh: lookUp}
		return s.run(ctx, every, domains)
	case verb == "trigger" && len(domains) == 1:
		return ask(ctx, client, domains[0], "hand")
	case verb == "status" && len(domains) == 0:
		return status(ctx, out, inspector)
	case verb == "release" && len(domains) == 1:
		return release(ctx, out, inspector, domains[0])
	}
	return fmt.Errorf("invalid arguments: %s", strings.Join(args, " "))
}

// lookUp refreshes a domain.
func lookUp(ctx context.Context, domain string) (string, error) {
	addresses, err := net.DefaultResolver.LookupHost(ctx, domain)
	return strings.Join(addresses, " "), err
}

func status(ctx context.Context, out io.Writer, inspector *locking.Inspector) error {
	held, err := inspector.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range held {
		fmt.Fprintf(out, "%s is being refreshed by %s for %v; %d wait\n",
			s.Key, s.Holder, time.Since(s.Holder.Since).Round(time.Second), len(s.Waiters))
	}
	return nil
}

func release(ctx context.Context, out io.Writer, inspector *locking.Inspector, domain string) error {
	s, err := inspector.Status(ctx, domain)
	if err != nil {
		return err
	}
	former, err := inspector.ForceRelease(ctx, domain, s.Fence)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s released from %s\n", domain, former)
	return err
}
