package access_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"lockstep/internal/access"
)

// TestTurnsAreLimitedByApp has more calls of an app than may run at once.
func TestTurnsAreLimitedByApp(t *testing.T) {
	t.Parallel()
	turns, ended := access.Turns{Max: 2}, errors.New("ended")
	running, proceed := make(chan bool), make(chan bool)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			err := turns.Run(t.Context(), "docs", func() error { running <- true; <-proceed; return ended })
			if !errors.Is(err, ended) {
				t.Error(err)
			}
		})
		<-running
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := turns.Run(ctx, "docs", func() error { t.Error("one more runs"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("one more: %v", err)
	}
	if err := turns.Run(t.Context(), "scan", func() error { return ended }); !errors.Is(err, ended) {
		t.Errorf("another app: %v", err)
	}
	close(proceed)
	all.Wait()
}
