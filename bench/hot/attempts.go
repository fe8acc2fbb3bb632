package hot

import (
	"context"
	"maps"
	"strconv"
	"time"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
)

// attemptsCharged records failed attempts in Redis while entries are in flight.
type attemptsCharged struct {
	stop context.CancelFunc
	done chan struct{}
	most map[string]string // by entry ID: the field's largest value
}

// watchAttempts starts to sample the failed attempts of a namespace's changes.
func watchAttempts(ctx context.Context, server *rig.Redis, namespace events.Namespace) *attemptsCharged {
	client := server.Open()
	ctx, stop := context.WithCancel(ctx)
	a := &attemptsCharged{stop: stop, done: make(chan struct{}), most: map[string]string{}}
	key := string(namespace) + "tries:changes:" + events.WorkersGroup
	go func() {
		defer close(a.done)
		defer client.Close()
		for app.Sleep(ctx, 10*time.Millisecond) {
			// Redis may hang. Attempts never decrease until the entry is finished.
			if sample, err := client.HGetAll(ctx, key).Result(); err == nil {
				maps.Copy(a.most, sample)
			}
		}
	}()
	return a
}

// end stops sampling and returns the number of entries with failed attempts, and the most failed attempts of one.
func (a *attemptsCharged) end() (entries, most int) {
	a.stop()
	<-a.done
	for _, text := range a.most {
		n, _ := strconv.Atoi(text) // HINCRBY wrote it
		most = max(most, n)
	}
	return len(a.most), most
}
