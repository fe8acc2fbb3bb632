package events_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"lockstep/events"

	"pgregory.net/rapid"
)

func TestAnyResultSurvivesMarshalling(t *testing.T) {
	hash := rapid.StringMatching(`([0-9a-f]{40})?`)
	file := rapid.Custom(func(t *rapid.T) events.File {
		return events.File{
			Path:   rapid.StringMatching(`[a-zß<&"\\ ]{1,9}(/[.]?[a-z]{1,9}){0,3}`).Draw(t, "path"),
			Status: rapid.SampledFrom([]events.FileStatus{events.FileAdded, events.FileModified, events.FileDeleted}).Draw(t, "status"),
		}
	})
	paths := []events.RepoPath{repo(t, "Acme/widgets"), repo(t, "group/sub/name")}
	rapid.Check(t, func(rt *rapid.T) {
		resultRoundTrip(t, events.Result{
			ID:     rapid.StringN(1, 40, -1).Draw(rt, "id"),
			Type:   rapid.SampledFrom([]events.ResultType{events.ResultSynced, events.ResultFailed, events.ResultRemoved}).Draw(rt, "type"),
			Source: rapid.String().Draw(rt, "source"),
			Time:   time.Unix(0, rapid.Int64Min(1).Draw(rt, "time")).UTC(),
			Repo:   rapid.SampledFrom(paths).Draw(rt, "repo"), App: rapid.String().Draw(rt, "app"), Ref: genRef(rt, "ref"),
			Deliveries: rapid.SliceOf(rapid.String()).Draw(rt, "deliveries"), Attempts: rapid.Int().Draw(rt, "attempts"),
			Took:   time.Duration(rapid.Int64Range(0, 1<<40).Draw(rt, "took")) * time.Millisecond,
			Fence:  rapid.Uint64().Draw(rt, "fence"),
			Before: hash.Draw(rt, "before"), After: hash.Draw(rt, "after"), Path: "Acme/widgets@v1", Tree: ".lockstep/repos/x",
			Files: rapid.SliceOf(file).Draw(rt, "files"), Full: rapid.Bool().Draw(rt, "full"), Truncated: rapid.Bool().Draw(rt, "truncated"),
			Until: rapid.SampledFrom([]string{"", "1795223511284-0"}).Draw(rt, "until"),
			Class: events.ClassAuth, Error: rapid.String().Draw(rt, "error"), Retryable: rapid.Bool().Draw(rt, "retryable"),
			Forced:       rapid.Bool().Draw(rt, "forced"),
			Verification: &events.Verification{Verified: rapid.Bool().Draw(rt, "verified"), By: rapid.String().Draw(rt, "by"), Reason: rapid.String().Draw(rt, "reason")},
		})
	})
}

func TestNamesAreTheBytesOfThePath(t *testing.T) {
	r := goldenResults(t)["result_synced_v1"]
	r.Files = []events.File{
		{Path: "caf\xe9", Raw: "Y2Fm6Q==", From: "th\xe9", FromRaw: "dGjp", Status: events.FileRenamed},
		{Path: "café", Status: events.FileAdded},
	}
	wire, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	back, err := events.ParseResult(wire)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][2]string{{"caf\xe9", "th\xe9"}, {"café", ""}} {
		if got := [2]string{back.Files[i].Name(), back.Files[i].OldName()}; got != want {
			t.Errorf("names %q, want %q", got, want)
		}
	}
}

func TestTookIsKeptToTheMillisecond(t *testing.T) {
	r := goldenResults(t)["result_synced_v1"]
	r.Took = 31*time.Millisecond + 999*time.Microsecond
	wire, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := events.ParseResult(wire); err != nil || back.Took != 31*time.Millisecond {
		t.Errorf("took %v, %v", back.Took, err)
	}
}

func TestParseResultRefusesAsMalformed(t *testing.T) {
	sound, err := json.Marshal(goldenResults(t)["result_synced_v1"])
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string][]string{
		"no version":                   {"synced.v1", "synced"},
		"a change's type":              {"lockstep.result.synced.v1", "lockstep.change.pushed.v1"},
		"another specversion":          {`"1.0"`, `"2.0"`},
		"no id":                        {`"id":"synced:1795223511284-0",`, ``},
		"no repo":                      {`"repo":"Acme/widgets",`, ``},
		"a bad repo":                   {`"repo":"Acme/widgets"`, `"repo":"../widgets"`},
		"a bad ref":                    {`refs/heads/main`, `a..b`},
		"a bad time":                   {`"time":"2026`, `"time":"20x6`},
		"a published name above":       {`"path":"Acme/widgets"`, `"path":"../../etc"`},
		"an absolute published name":   {`"path":"Acme/widgets"`, `"path":"/etc"`},
		"a tree above the root":        {`"tree":".lockstep/repos`, `"tree":".lockstep/../../repos`},
		"a file above the tree":        {`a.txt`, `../a.txt`},
		"a negative duration":          {`"took_ms":31`, `"took_ms":-31`},
		"a duration beyond all bounds": {`"took_ms":31`, `"took_ms":9223372036854775807`},
		"a number of a megabyte":       {`"took_ms":31`, `"took_ms":` + strings.Repeat("9", 1<<20)},
		"a negative fence":             {`"fence":1`, `"fence":-1`},
		"not JSON":                     {`{`, `<`},
	} {
		t.Run(name, func(t *testing.T) {
			doc := strings.Replace(string(sound), edit[0], edit[1], 1)
			if doc == string(sound) {
				t.Fatal("nothing was edited")
			}
			r, err := events.ParseResult([]byte(doc))
			if err == nil {
				t.Fatalf("accepted as %+v", r)
			}
			if events.DispositionOf(err) != events.Malformed || events.ClassOf(err) != events.ClassConfig {
				t.Errorf("%v is %v, %v", err, events.DispositionOf(err), events.ClassOf(err))
			}
			if len(err.Error()) > maxError {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
	if _, err := events.ParseResult([]byte(strings.Replace(string(sound), `"repo":"Acme`, `"repo":"..`, 1))); !errors.Is(err, events.ErrBadRepoPath) {
		t.Errorf("got %v; want ErrBadRepoPath", err)
	}
}
