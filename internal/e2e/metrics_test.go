package e2e

import (
	"bufio"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// scraped holds the exported samples, keyed by name with labels.
type scraped map[string]float64

func samplesOf(t *testing.T, addr string) scraped {
	t.Helper()
	response := proctest.Must(http.Get("http://" + addr + "/metrics"))(t)
	defer response.Body.Close()
	samples, line := scraped{}, regexp.MustCompile(`^(\w+(?:\{.*\})?) (\S+)$`)
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if found := line.FindStringSubmatch(lines.Text()); found != nil {
			samples[found[1]] = proctest.Must(strconv.ParseFloat(found[2], 64))(t)
		}
	}
	return samples
}

// sum adds up the samples of a name with any labels.
func (s scraped) sum(name string) (sum float64) {
	for sample, value := range s {
		if sample == name || strings.HasPrefix(sample, name+"{") {
			sum += value
		}
	}
	return sum
}

// TestStageTimesAddUpToEndToEndTime sends webhooks and other changes through a service, and compares the end-to-end times
// with the times of the stages.
func TestStageTimesAddUpToEndToEndTime(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	git, server, dir := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	watchURL(t, client, events.DefaultNamespace, git.URL("acme/widgets"))
	p := proctest.Start(t, "serve", "--listen", "127.0.0.1:0", "--slots", "2", "--redis", server.URL(), "--root", t.TempDir(), "--hooks", writeHooks(t, dir))
	addr := p.ListenAddress("listening")
	proctest.AwaitResults(t, client, 2) // of the first poll, and of the sync that it requests
	for n := range 3 {
		head := proctest.Must(git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": fmt.Sprint(n)}}))(t)
		webhook{id: fmt.Sprint("d", n), repo: "acme/widgets", url: git.URL("acme/widgets"), before: noCommit, after: head}.mustSend(t, addr)
		proctest.AwaitResults(t, client, 3+n)
	}
	sent := 5
	for n := range 50 { // enough at once that some are coalesced
		change := proctest.Must(events.NewChange(events.Change{ID: fmt.Sprint("c", n), URL: git.URL("acme/widgets")}))(t)
		proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
	}
	sent += 50
	proctest.Must(git.Create(ctx, "acme/gadgets", map[string]string{"a": "1"}))(t)
	for _, change := range []events.Change{
		{URL: git.URL("acme/gadgets")},
		{Type: events.ChangeRemoved, URL: git.URL("acme/gadgets"), Force: true},
		{URL: git.URL("acme/nothing")}, // does not exist
	} {
		proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, proctest.Must(events.NewChange(change))(t)))(t)
		sent++
		proctest.AwaitResults(t, client, sent)
	}
	var s scraped
	proctest.Eventually(t, func() bool {
		s = samplesOf(t, addr)
		return s.sum("lockstep_end_to_end_seconds_count") == float64(sent)
	}, "%d changes in the histogram", sent)
	s = samplesOf(t, addr) // histograms are not read at one moment

	for outcome, want := range map[string]float64{"removed": 1, "failed": 1, "polled": 1} {
		if got := s[`lockstep_end_to_end_seconds_count{outcome="`+outcome+`"}`]; got != want {
			t.Errorf("%v changes %s, want %v", got, outcome, want)
		}
	}
	for sample, want := range s {
		if outcome, ok := strings.CutPrefix(sample, `lockstep_changes_total{class="",`); ok {
			if got := s["lockstep_end_to_end_seconds_count{"+outcome]; got != want {
				t.Errorf("%s: %v in the histogram, %v counted", outcome, got, want)
			}
		}
	}
	worked := s.sum("lockstep_end_to_end_seconds_count") - s[`lockstep_end_to_end_seconds_count{outcome="coalesced"}`] - 1 // without the failed one
	for stage, want := range map[string]float64{
		"receive": float64(sent), "lease": worked, "slot": worked, "settle": worked, "work": 2, "publish": worked - 2, "fetch": -1,
		"coalesced": s[`lockstep_end_to_end_seconds_count{outcome="coalesced"}`],
	} {
		got := s[`lockstep_stage_seconds_count{stage="`+stage+`"}`]
		if want < 0 && got < 4 || want >= 0 && got != want { // changes coalesced late need no fetch
			t.Errorf("%v changes in stage %s, want %v", got, stage, want)
		}
	}
	failed := s[`lockstep_end_to_end_seconds_sum{outcome="failed"}`]
	all, split := s.sum("lockstep_end_to_end_seconds_sum"), s.sum("lockstep_stage_seconds_sum")
	if split > all+1e-3 || split < all-failed-1e-3 || all <= 0 || math.IsNaN(all) {
		t.Errorf("end-to-end %v s, stages %v s, failed changes %v s: the stages must add up", all, split, failed)
	}
	if s[`lockstep_sync_total{op="sync",reason="",result="ok"}`] < 4 || s[`lockstep_sync_total{op="remove",reason="",result="ok"}`] != 1 ||
		s[`lockstep_sync_total{op="sync",reason="not_found",result="permanent"}`] != 1 || s["lockstep_sync_bytes_total"] < 100 {
		t.Errorf("attempts: %v, bytes %v", s.sum("lockstep_sync_total"), s["lockstep_sync_bytes_total"])
	}
	for _, handler := range []string{"changes", "scheduler", "notifier"} {
		if s[`lockstep_handler_up{handler="`+handler+`"}`] != 1 {
			t.Errorf("handler %s is not up", handler)
		}
	}
	if s.sum("lockstep_build_info") != 1 || s.sum("lockstep_message_attempts_count") < 4 {
		t.Error("no lockstep_build_info, or no lockstep_message_attempts")
	}
}
