package rollup

import (
	"context"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestCountsOfAllProcessesAreAdded(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	ctx := t.Context()
	day := time.Now().UTC().Truncate(24 * time.Hour)
	at := func(minutes int) time.Time { return day.Add(time.Duration(minutes) * time.Minute) }
	first, second := NewRecorder(client, events.DefaultNamespace), NewRecorder(client, events.DefaultNamespace)
	first.count(at(59), Synced, 100*time.Millisecond)
	first.count(at(60), Failed, -1) // in the hash of the next hour
	second.count(at(60), Synced, time.Hour)
	second.count(at(60), Synced, 3*time.Hour)
	for _, r := range []*Recorder{first, second, second} { // the second time with nothing new
		if err := r.flush(ctx, at(62)); err != nil {
			t.Fatal(err)
		}
	}
	reader := Reader{client, events.DefaultNamespace}
	points, err := reader.Read(ctx, at(58), at(63), time.Minute)
	if err != nil || len(points) != 6 {
		t.Fatalf("%d points, want 6: %v", len(points), err)
	}
	for i, want := range []Point{{}, {Known: true, Counts: [Outcomes]int64{1}}, {Known: true, Counts: [Outcomes]int64{2, 0, 1}}, {}, {Known: true}, {}} {
		if p := points[i]; p.Known != want.Known || p.Counts != want.Counts || !p.At.Equal(at(58+i)) {
			t.Errorf("minute %d: %v known %v, %v, want %+v", 58+i, p.At, p.Known, p.Counts, want)
		}
	}
	for q, want := range map[float64]time.Duration{0: time.Hour, 1: 3 * time.Hour} {
		if got, ok := points[2].Quantile(q); !ok || float64(got) < 0.6*float64(want) || float64(got) > 1.4*float64(want) {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if _, ok := points[4].Quantile(0.5); ok {
		t.Error("a latency without changes")
	}
	for step, want := range map[time.Duration]int{10 * time.Minute: 7, time.Hour: 2} {
		points, err := reader.Read(ctx, day, at(63), step)
		var sum int64
		for _, p := range points {
			sum += p.All()
		}
		if err != nil || len(points) != want || sum != 4 {
			t.Errorf("steps of %v: %d points with %d changes, want %d with 4: %v", step, len(points), sum, want, err)
		}
	}
}

// TestSizeIsBounded fills the hashes of an hour and of a day.
func TestSizeIsBounded(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	client := server.Client()
	r := NewRecorder(client, events.DefaultNamespace)
	day := time.Now().UTC().Truncate(24 * time.Hour)
	for minute := range 24 * 60 {
		if minute%10 != 0 && minute/60 != 3 { // one of each ten, and all of an hour
			continue
		}
		for i := range Bins {
			delay := time.Duration(1.01 * float64(time.Millisecond) * pow(growth, i))
			r.count(day.Add(time.Duration(minute)*time.Minute), Outcome(i%int(Outcomes)), delay)
		}
		if err := r.flush(t.Context(), day); err != nil {
			t.Fatal(err)
		}
	}
	var total int64
	for i, hashes := range []int64{7, 8} {
		hash, _ := resolutions[i].key(events.DefaultNamespace, day.Add(3*time.Hour))
		n, err := client.MemoryUsage(t.Context(), hash, 0).Result()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d fields, %d bytes", hash, client.HLen(t.Context(), hash).Val(), n)
		total += hashes * n
		if left := client.TTL(t.Context(), hash).Val(); left <= 0 || left > resolutions[i].expires {
			t.Errorf("%s expires in %v", hash, left)
		}
	}
	if total > 5<<20 {
		t.Errorf("all hashes take %d bytes, want at most 5 MB", total)
	}
}

func pow(x float64, n int) float64 {
	y := 1.0
	for range n {
		y *= x
	}
	return y
}

func TestRunRecordsAtTheEnd(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	r := NewRecorder(client, events.DefaultNamespace)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	r.Count(Synced, time.Second)
	cancel()
	<-done
	points, err := Reader{client, events.DefaultNamespace}.Read(t.Context(), time.Now().Add(-5*time.Minute), time.Now(), time.Minute)
	var sum int64
	for _, p := range points {
		sum += p.All()
	}
	if err != nil || sum != 1 {
		t.Errorf("%d changes, want 1: %v", sum, err)
	}
}
