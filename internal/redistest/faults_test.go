package redistest_test

import (
	"context"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestPowerCutTakesWhatIsNotFlushed(t *testing.T) {
	t.Parallel()
	for fsync, survives := range map[string]bool{"always": true, "everysec": false} {
		t.Run(fsync, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			server := redistest.StartFaulty(t, time.Millisecond, "--appendonly", "yes", "--appendfsync", fsync)
			client := server.Client()
			for n := 0; ; n++ {
				value := time.Now().String()
				testenv.Must(0, client.Set(ctx, "k", value, 0).Err())(t)
				unflushed, lost := server.PowerCut(n%2 == 1)
				server.Restart()
				got := client.Get(ctx, "k").Val()
				switch {
				case survives && (got != value || lost > 0 || unflushed > 0):
					t.Fatalf("%d bytes unflushed, %d lost, the value is %q", unflushed, lost, got)
				case survives && n == 10 || !survives && lost > 0 && got != value:
					return
				case n == 100:
					t.Fatal("nothing was lost in 100 power cuts")
				}
			}
		})
	}
}

func TestSetClock(t *testing.T) {
	t.Parallel()
	server := redistest.StartFaulty(t, 0)
	client := server.Client()
	for _, off := range []time.Duration{-90 * time.Minute, 0, time.Hour + 1234*time.Millisecond, -1500 * time.Millisecond} {
		server.SetClock(off)
		now := time.Now()
		for name, read := range map[string]func() (int64, error){
			"TIME": func() (int64, error) { at, err := client.Time(t.Context()).Result(); return at.UnixMilli(), err },
			"in script": func() (int64, error) {
				return client.Eval(t.Context(), "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)", nil).Int64()
			},
		} {
			if got := time.UnixMilli(testenv.Must(read())(t)); got.Sub(now.Add(off)).Abs() > time.Second {
				t.Errorf("%s: %v, want %v", name, got, now.Add(off))
			}
		}
	}
}
