package hot

import (
	"strings"
	"testing"
	"time"

	"lockstep/internal/stats"
)

func TestHalfOfTheEventsAreHotAndTheOthersAreSpread(t *testing.T) {
	tasks := makeTasks(400, 100)
	perRepo := map[string]int{}
	alternations := 0
	for i, task := range tasks {
		if task.Event != i || task.Hot != (task.Repo == "bench/hot") {
			t.Fatalf("task %d is %+v", i, task)
		}
		perRepo[task.Repo]++
		if i > 0 && task.Hot != tasks[i-1].Hot {
			alternations++
		}
	}
	if perRepo["bench/hot"] != 200 || len(perRepo) != 100 {
		t.Errorf("%d hot events, %d repositories; want 200 and 100", perRepo["bench/hot"], len(perRepo))
	}
	for repo, n := range perRepo {
		if repo != "bench/hot" && n != 2 && n != 3 {
			t.Errorf("%s has %d events; want 2 or 3", repo, n)
		}
	}
	if alternations < 100 {
		t.Errorf("hot and cold alternate %d times; want them mixed", alternations)
	}
}

func TestWithoutHotChangesNothingElse(t *testing.T) {
	tasks := makeTasks(40, 10)
	cold := withoutHot(tasks)
	if len(tasks) != 40 || len(cold) != 20 {
		t.Fatalf("%d of %d are cold; want 20 of 40", len(cold), len(tasks))
	}
	for i, task := range cold {
		if task.Hot || task != tasks[task.Event] || i > 0 && task.Event <= cold[i-1].Event {
			t.Errorf("task %d is %+v; want it cold, as it was, and in order", i, task)
		}
	}
}

// doneOf reads lines of the worker protocol.
func doneOf(t *testing.T, lines ...string) []done {
	t.Helper()
	var all []done
	for _, line := range lines {
		d, err := parseDone(line)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

func TestJudge(t *testing.T) {
	tasks := []Task{
		{Event: 0, Repo: "hot", Hot: true}, {Event: 1, Repo: "a"}, {Event: 2, Repo: "b"}, {Event: 3, Repo: "hot", Hot: true}, {Event: 4, Repo: "a"},
	}
	for name, tc := range map[string]struct {
		lines []string
		want  Figures
	}{
		"nothing was done": {want: Figures{Lost: 5}},
		"each once, whoever reports first": {
			lines: []string{"4 125 135 140", "0 100 110 112", "3 110 120 190", "1 102 112 115", "2 103 113 120"},
			want:  Figures{Cold: stats.Latency{P50: 20, P99: 40, Max: 40}, AllDone: 90},
		},
		"the end of one is the beginning of the next": {
			lines: []string{"0 100 110 112", "1 100 110 115", "2 100 110 120", "3 110 120 130", "4 110 120 140"},
			want:  Figures{Cold: stats.Latency{P50: 20, P99: 40, Max: 40}, AllDone: 40},
		},
		"one is missing": {
			lines: []string{"0 100 110 112", "1 100 110 115", "2 100 110 120", "3 110 120 130"},
			want:  Figures{Cold: stats.Latency{P50: 15, P99: 20, Max: 20}, AllDone: 30, Lost: 1},
		},
		"one was done and never settled": {
			lines: []string{"0 100 110 112", "1 100 110 115", "2 100 110 120", "3 110 120 0", "4 110 120 140"},
			want:  Figures{Cold: stats.Latency{P50: 20, P99: 40, Max: 40}, AllDone: 40, Lost: 1},
		},
		"done again because it could not be settled": {
			lines: []string{"0 100 110 112", "1 100 110 0", "1 140 150 155", "2 100 110 120", "3 110 120 130", "4 110 120 140"},
			want:  Figures{Cold: stats.Latency{P50: 40, P99: 55, Max: 55}, AllDone: 55, Doubled: 1},
		},
		"done three times, and settled three times": {
			lines: []string{"0 100 110 112", "1 100 110 115", "1 130 140 145", "1 150 160 165", "2 100 110 120", "3 110 120 130", "4 110 120 140"},
			want:  Figures{Cold: stats.Latency{P50: 20, P99: 40, Max: 40}, AllDone: 40, Doubled: 1},
		},
		"an event from elsewhere": {
			lines: []string{"0 100 110 112", "1 100 110 115", "2 100 110 120", "3 110 120 130", "4 110 120 140", "7 100 110 999"},
			want:  Figures{Cold: stats.Latency{P50: 20, P99: 40, Max: 40}, AllDone: 40, Doubled: 1},
		},
		"two at once on two repositories, one inside a long one": {
			lines: []string{"0 100 130 131", "3 105 110 111", "1 100 110 115", "2 100 110 120", "4 109 120 140"},
			want:  Figures{Cold: stats.Latency{P50: 20, P99: 40, Max: 40}, AllDone: 40, Overlaps: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judge(tasks, 100, doneOf(t, tc.lines...)); got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestParseDoneRejectsBadLines(t *testing.T) {
	for name, line := range map[string]string{
		"empty":               "",
		"too short":           "0 1 2",
		"too long":            "0 1 2 3 4",
		"no number":           "0 1 2 x",
		"negative event":      "-1 1 2 3",
		"ended too soon":      "0 3 2 4",
		"settled before ends": "0 1 3 2",
	} {
		if d, err := parseDone(line); err == nil {
			t.Errorf("%s: %q is %+v; want an error", name, line, d)
		}
	}
}

func TestSummarize(t *testing.T) {
	round := func(busy, calm time.Duration) Round {
		return Round{
			Hot:  Figures{Cold: stats.Latency{P50: busy, P99: 2 * busy}, AllDone: 5 * busy},
			Calm: Figures{Cold: stats.Latency{P50: calm, P99: 4 * calm}, AllDone: 5 * calm},
		}
	}
	rounds := []Round{round(20, 10), round(30, 30), round(40, 10)}
	rounds[0].Hot.Lost, rounds[1].Calm.Lost = 1, 2
	rounds[1].Hot.Doubled, rounds[2].Calm.Doubled = 3, 4
	rounds[2].Hot.Overlaps, rounds[0].Calm.Overlaps = 5, 6
	got := summarize(rounds)
	want := Summary{
		P50:         stats.Range[time.Duration]{Median: 30, Lowest: 20, Highest: 40},
		P99:         stats.Range[time.Duration]{Median: 60, Lowest: 40, Highest: 80},
		AllDone:     stats.Range[time.Duration]{Median: 150, Lowest: 100, Highest: 200},
		CalmP50:     stats.Range[time.Duration]{Median: 10, Lowest: 10, Highest: 30},
		CalmP99:     stats.Range[time.Duration]{Median: 40, Lowest: 40, Highest: 120},
		CalmAllDone: stats.Range[time.Duration]{Median: 50, Lowest: 50, Highest: 150},
		RatioP50:    stats.Range[float64]{Median: 2, Lowest: 1, Highest: 4},
		RatioP99:    stats.Range[float64]{Median: 1, Lowest: 0.5, Highest: 2},
		Lost:        3, Doubled: 7, Overlaps: 11,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	err := got.Err()
	for _, fault := range []string{"lost: 3", "twice: 7", "one repository: 11"} {
		if err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("it says %v; want %q", err, fault)
		}
	}
	if err := summarize([]Round{round(1, 0)}).Err(); err != nil {
		t.Errorf("of a round without faults: %v; want nothing", err)
	}
	if got := summarize(nil); got != (Summary{}) {
		t.Errorf("of no rounds: %+v; want zeros", got)
	}
}
