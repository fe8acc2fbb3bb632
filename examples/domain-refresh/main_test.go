package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"lockstep/internal/testenv"
)

// TestEmbeddedRedis runs a process without a Redis, and requests a refresh from another.
func TestEmbeddedRedis(t *testing.T) {
	testenv.Long(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- command(ctx, w, "", time.Hour, []string{"run", "localhost"}) }()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(line)
	address := fields[len(fields)-1]
	for _, args := range [][]string{{"trigger", "localhost"}, {"status"}} {
		if err := command(ctx, io.Discard, address, time.Hour, args); err != nil {
			t.Errorf("%s at %s: %v", args, address, err)
		}
	}
	cancel()
	if err := within(t, ended, "end"); err != nil {
		t.Error(err)
	}
}
