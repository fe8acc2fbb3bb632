package notify

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/execute"
	"lockstep/internal/ext/views"
	"lockstep/internal/view"
	"lockstep/internal/watch"
)

func TestRecipients(t *testing.T) {
	sel := func(s string) watch.Selector { return must(watch.ParseSelector(s))(t) }
	set := func(watches ...watch.Watch) watch.Set {
		for i := range watches {
			if watches[i].NotifyURL == "" {
				watches[i].NotifyURL = "https://apps.example.org/"
			}
		}
		return watch.Set{Watches: watches}
	}
	on := func(app, ref string) watch.Watch { return watch.Watch{App: app, Ref: sel(ref)} }
	result := func(change func(*events.Result)) events.Result {
		r := synced(t, "r", "docs", "acme/a")
		change(&r)
		return r
	}
	same := func(*events.Result) {}
	at := func(ref, path string) func(*events.Result) {
		return func(r *events.Result) { r.Ref, r.Path = must(events.ParseRef(ref))(t), path }
	}
	failed := func(class events.Class, ref string) func(*events.Result) {
		return func(r *events.Result) {
			r.Type, r.Class, r.Path, r.Ref = events.ResultFailed, class, "", must(events.ParseRef(ref))(t)
		}
	}
	removed := func(app, ref string) func(*events.Result) {
		return func(r *events.Result) {
			r.Type, r.App, r.Ref = events.ResultRemoved, app, must(events.ParseRef(ref))(t)
		}
	}
	docsOnly := on("docs", "")
	docsOnly.Paths = []string{"docs/**"}
	withViews := on("docs", "")
	withViews.Options = watch.With(views.Options{Views: must(view.New(map[string][]string{"api": {"api"}}))(t)})
	ofView := func(name string) events.Result {
		return result(func(r *events.Result) { r.Type, r.View = events.ResultView, name })
	}
	silenced := on("docs", "")
	silenced.Silenced = "2026-11-21T18:00:00Z answered 410 Gone"
	runsDocs := map[string]execute.Command{"docs": {}}
	type test struct {
		result   events.Result
		set      watch.Set
		want     []string // app and ref
		commands map[string]execute.Command
	}
	tests := map[string]test{
		"a command, without a URL":           {result(same), watch.Set{Watches: []watch.Watch{on("docs", "")}}, []string{"docs "}, runsDocs},
		"a command, silenced":                {result(same), set(silenced), []string{"docs "}, runsDocs},
		"a command, no file of interest":     {result(same), set(docsOnly), nil, runsDocs},
		"a command, a failure":               {result(failed(events.ClassAuth, "")), set(on("docs", "")), nil, runsDocs},
		"a command, a view":                  {ofView("api"), set(withViews), []string{"docs "}, runsDocs},
		"another app's command, without URL": {result(func(r *events.Result) { r.App = "site" }), watch.Set{Watches: []watch.Watch{on("site", "")}}, nil, runsDocs},
	}
	for name, tc := range map[string]struct {
		result events.Result
		set    watch.Set
		want   []string
	}{
		"the default branch":                     {result(same), set(on("docs", ""), on("site", "")), []string{"docs "}},
		"an exact ref before the default branch": {result(same), set(on("docs", ""), on("docs", "main")), []string{"docs refs/heads/main"}},
		"the default branch before a pattern":    {result(same), set(on("docs", ""), on("docs", "refs/heads/*")), []string{"docs "}},
		"a pattern":                              {result(at("refs/tags/v1", "acme/a@refs%2Ftags%2Fv1")), set(on("docs", ""), on("docs", "refs/tags/v*")), []string{"docs refs/tags/v*"}},
		"another ref":                            {result(at("dev", "acme/a@dev")), set(on("docs", ""), on("docs", "main"), on("docs", "refs/tags/*")), nil},
		"another app":                            {result(same), set(on("site", "")), nil},
		"without an app":                         {result(func(r *events.Result) { r.App = "" }), set(on("docs", "")), nil},
		"unchanged":                              {result(func(r *events.Result) { r.Before = r.After }), set(on("docs", "")), nil},
		"polled":                                 {result(func(r *events.Result) { r.Type = events.ResultPolled }), set(on("docs", "")), nil},
		"silenced":                               {result(same), set(silenced), nil},
		"silenced watch, active pattern":         {result(same), set(silenced, on("docs", "refs/heads/m*")), []string{"docs refs/heads/m*"}},
		"without a URL":                          {result(same), watch.Set{Watches: []watch.Watch{on("docs", "")}}, nil},
		"no file of interest":                    {result(same), set(docsOnly), nil},
		"no file of interest to the exact watch": {result(same), set(docsOnly, on("docs", "refs/heads/*")), []string{"docs refs/heads/*"}},
		"a file of interest":                     {result(func(r *events.Result) { r.Files[0].Path = "docs/x/y.md" }), set(docsOnly), []string{"docs "}},
		"truncated list of files":                {result(func(r *events.Result) { r.Truncated = true }), set(docsOnly), []string{"docs "}},
		"a sync with views":                      {result(same), set(withViews), nil},
		"a view":                                 {ofView("api"), set(withViews, on("docs", "refs/heads/*"), on("site", "")), []string{"docs "}},
		"a view with a tree":                     {result(func(r *events.Result) { r.Type, r.View, r.Path = events.ResultView, "api", "acme/a@~/docs/api" }), set(withViews), []string{"docs "}},
		"a view with a tree of another ref":      {result(func(r *events.Result) { r.Type, r.View, r.Path = events.ResultView, "api", "acme/a@v1~/docs/api" }), set(withViews), nil},
		"a view that was removed":                {ofView("web"), set(withViews), nil},
		"a failure with views":                   {result(failed(events.ClassAuth, "")), set(withViews), []string{"docs "}},
		"full sync":                              {result(func(r *events.Result) { r.Full = true }), set(docsOnly), []string{"docs "}},
		"failed":                                 {result(failed(events.ClassAuth, "")), set(on("docs", ""), on("docs", "main")), []string{"docs "}},
		"failed ref":                             {result(failed(events.ClassAuth, "main")), set(on("docs", ""), on("docs", "main")), []string{"docs refs/heads/main"}},
		"failed ref that no other watch selects": {result(failed(events.ClassAuth, "main")), set(on("docs", ""), on("docs", "refs/tags/*")), []string{"docs "}},
		"failed, busy":                           {result(failed(events.ClassBusy, "")), set(on("docs", "")), nil},
		"removed, the answer to a change":        {result(removed("", "")), set(on("docs", ""), on("site", "refs/tags/*")), nil},
		"removed for one app":                    {result(removed("site", "")), set(on("docs", ""), on("site", "refs/tags/*")), []string{"site refs/tags/*"}},
		"removed branch":                         {result(removed("site", "dev")), set(on("docs", ""), on("site", "dev"), on("site", "refs/heads/*")), []string{"site refs/heads/dev"}},
		"removed default branch":                 {result(removed("docs", "main")), set(on("docs", "")), []string{"docs "}},
		"unknown type":                           {result(func(r *events.Result) { r.Type = "lockstep.result.dreamt.v1" }), set(on("docs", "")), nil},
	} {
		tests[name] = test{tc.result, tc.set, tc.want, nil}
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			if watch.Notable(tc.result) {
				for _, w := range recipients(tc.result, tc.set, tc.commands) {
					got = append(got, w.App+" "+w.Ref.String())
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestBodyFitsTheLimit(t *testing.T) {
	many := func(n int) (files []events.File) {
		for i := range n {
			files = append(files, events.File{Path: fmt.Sprintf("folder/%d/<é>.txt", i), Status: events.FileModified})
		}
		return files
	}
	for name, tc := range map[string]struct {
		change    func(*events.Result)
		files     bool // some were dropped
		truncated bool
		long      bool // uses nearly the whole limit
	}{
		"short":                     {func(r *events.Result) { r.Files = many(3) }, false, false, false},
		"many files":                {func(r *events.Result) { r.Files = many(5000) }, true, true, true},
		"one file that is too long": {func(r *events.Result) { r.Files = []events.File{{Path: strings.Repeat("x", 30_000), Status: "added"}} }, true, true, false},
		"many missing submodules": {func(r *events.Result) {
			for i := range 100 {
				r.Missing = append(r.Missing, events.MissingSubmodule{Path: fmt.Sprint("libs/", i), Class: events.ClassNetwork, Error: strings.Repeat("x", 400)})
			}
		}, false, true, false},
		"everything too long": {func(r *events.Result) {
			r.Files, r.Error = many(100), strings.Repeat("é", 30_000)
			for i := range 5000 {
				r.Deliveries = append(r.Deliveries, fmt.Sprint("delivery-", i))
			}
		}, false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := synced(t, "r", "docs", "acme/a")
			tc.change(&r)
			body := must(Document(r))(t)
			got := must(events.ParseResult(body))(t)
			if len(body) >= maxBody || got.Truncated != tc.truncated || (len(got.Files) < len(r.Files)) != tc.files || got.ID != r.ID {
				t.Errorf("%d bytes, truncated %v, %d of %d files", len(body), got.Truncated, len(got.Files), len(r.Files))
			}
			if tc.long && len(body) < maxBody-100 {
				t.Errorf("%d bytes: more would fit", len(body))
			}
			if !json.Valid(body) {
				t.Error("not JSON")
			}
		})
	}
}

func TestSchedule(t *testing.T) {
	const day = 24 * time.Hour
	schedule := defaultSchedule()
	var sum time.Duration
	for _, d := range schedule {
		sum += d
	}
	if len(schedule) != 10 || sum < 3*day || sum > 4*day {
		t.Errorf("%d attempts in %v", len(schedule), sum)
	}
	for failed := 1; failed < len(schedule); failed++ {
		least, more := nextDelay(schedule, failed, 0, 0)
		most, _ := nextDelay(schedule, failed, 1, 0)
		usual := schedule[failed].Seconds()
		if !more || math.Abs(least.Seconds()/usual-0.8) > 0.001 || math.Abs(most.Seconds()/usual-1.2) > 0.001 {
			t.Errorf("after %d: %v to %v", failed, least, most)
		}
	}
	if _, more := nextDelay(schedule, len(schedule), 0.5, time.Minute); more {
		t.Error("the schedule does not end")
	}
	for wait, want := range map[time.Duration]time.Duration{
		time.Second: 4 * time.Second, 4500 * time.Millisecond: 4500 * time.Millisecond, time.Hour: time.Hour,
	} {
		if got, _ := nextDelay(schedule, 1, 1, wait); got != want {
			t.Errorf("Retry-After %v: %v, want %v", wait, got, want)
		}
	}
	header := http.Header{"Retry-After": {"120"}}
	for status, want := range map[int]time.Duration{429: 2 * time.Minute, 503: 2 * time.Minute, 500: 0, 404: 0} {
		if got := retryAfter(status, header, time.Now()); got != want {
			t.Errorf("%d: %v, want %v", status, got, want)
		}
	}
}
