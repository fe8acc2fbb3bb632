package events_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"lockstep/events"
)

// The files in testdata are the wire format of version 1, which every later parser must read. -update rewrites
// them; changing an existing file breaks compatibility.
var update = flag.Bool("update", false, "write the golden files of testdata anew")

var goldenTime = time.Date(2026, 11, 21, 1, 2, 3, 456789000, time.UTC)

func goldenChanges(t testing.TB) map[string]events.Change {
	return map[string]events.Change{
		"change_pushed_v1": {
			ID: "72d3162e-cc78-11e3-81ab-4c9367dc0958", Type: events.ChangePushed, Source: "/hooks/github", Time: goldenTime,
			Repo: repo(t, "Acme/widgets"), URL: "https://github.com/Acme/widgets.git", Ref: ref(t, "refs/heads/main"),
			App: "docs", Credential: "github-bot", Before: sha1A, After: sha1B, OnBusy: events.BusyWait,
		},
		"change_removed_v1": {
			ID: "f9e0c1aa-1", Type: events.ChangeRemoved, Source: "/lockstep/cli", Time: goldenTime,
			Repo: repo(t, "group/sub/name"), Force: true, OnBusy: events.BusySkip,
		},
		"change_moved_v1": {
			ID: "github/72d3162e/0", Type: events.ChangeMoved, Source: "/hooks/github", Time: goldenTime,
			Repo: repo(t, "Acme/widgets"), To: repo(t, "acme/gadgets"), URL: "https://github.com/acme/gadgets.git",
			Credential: "github-bot", OnBusy: events.BusyWait, Foreign: true,
		},
		"change_due_v1": {
			ID: "poll/1", Type: events.ChangeDue, Source: "/lockstep/watch", Time: goldenTime,
			Repo: repo(t, "Acme/widgets"), OnBusy: events.BusySkip,
		},
		"change_watched_v1": {
			ID: "github/72d3162e/1", Type: events.ChangePushed, Source: "/hooks/github", Time: goldenTime,
			Repo: repo(t, "Acme/widgets"), URL: "https://github.com/Acme/widgets.git", Ref: ref(t, "refs/tags/v1"),
			App: "docs", After: sha1B, OnBusy: events.BusyWait, Watched: true, Foreign: true,
		},
		"change_depth_v1": {
			ID: "cli/1", Type: events.ChangePushed, Source: "/lockstep/cli", Time: goldenTime,
			Repo: repo(t, "Acme/widgets"), URL: "https://github.com/Acme/widgets.git", Depth: 50, OnBusy: events.BusyWait,
		},
		"change_pinned_v1": {
			ID: "cli/2", Type: events.ChangePushed, Source: "/lockstep/cli", Time: goldenTime, Repo: repo(t, "Acme/widgets"),
			URL: "https://github.com/Acme/widgets.git", Ref: ref(t, "refs/heads/main"), After: sha1B, Pin: true, OnBusy: events.BusyWait,
		},
		"change_submodules_v1": {
			ID: "cli/4", Type: events.ChangePushed, Source: "/lockstep/cli", Time: goldenTime, Repo: repo(t, "Acme/widgets"),
			URL: "https://github.com/Acme/widgets.git", After: sha1B, Pin: true, Submodules: events.SubmodulesRequired, OnBusy: events.BusyWait,
		},
		"change_commit_v1": {
			ID: "cli/3", Type: events.ChangePushed, Source: "/lockstep/cli", Time: goldenTime, Repo: repo(t, "Acme/widgets"),
			URL: "https://github.com/Acme/widgets.git", Ref: ref(t, sha1B), OnBusy: events.BusyWait,
		},
	}
}

func goldenResults(t testing.TB) map[string]events.Result {
	synced := events.Result{
		ID: "synced:1795223511284-0", Type: events.ResultSynced, Source: "/lockstep/worker/w1", Time: goldenTime,
		Repo: repo(t, "Acme/widgets"), App: "docs", Ref: ref(t, "refs/heads/main"), Deliveries: []string{"72d3162e", "72d3162f"},
		Attempts: 1, Took: 31 * time.Millisecond, Fence: 1795223511284000, Before: sha1A, After: sha1B,
		Path: "Acme/widgets", Tree: ".lockstep/repos/Acme/widgets/trees/1795223511284000-89abcdef0123",
		Files: []events.File{
			{Path: "a.txt", Status: events.FileModified},
			{Path: "docs/größe & <more>.md", Status: events.FileAdded},
			{Path: "old/gone.go", Status: events.FileDeleted},
		},
		Truncated: true, Until: "1795223511284-0",
	}
	failed := events.Result{
		ID: "failed:1795223511285-0", Type: events.ResultFailed, Source: "/lockstep/worker/w2", Time: goldenTime,
		Repo: repo(t, "Acme/widgets"), App: "search", Ref: ref(t, "refs/tags/v1"), Deliveries: []string{"72d31630"},
		Attempts: 5, Took: 1500 * time.Millisecond, Fence: 1795223511284001,
		Class: events.ClassNetwork, Error: "fetch Acme/widgets: connection refused; will be tried at the next poll", Retryable: true,
	}
	removed := events.Result{
		ID: "removed:1795223511286-0", Type: events.ResultRemoved, Source: "/lockstep/worker/w1", Time: goldenTime,
		Repo: repo(t, "group/sub/name"), Deliveries: []string{"f9e0c1aa-1"}, Attempts: 1, Took: 2 * time.Millisecond,
		Fence: 1795223511284002,
	}
	moved := events.Result{
		ID: "moved:1795223511287-0", Type: events.ResultMoved, Source: "/lockstep/worker/w1", Time: goldenTime,
		Repo: repo(t, "Acme/widgets"), To: repo(t, "acme/gadgets"), Deliveries: []string{"github/72d3162e/0"}, Attempts: 1,
		Took: 9 * time.Millisecond, Fence: 1795223511284003, Path: "acme/gadgets",
		Tree: ".lockstep/repos/acme/gadgets/trees/1795223511284004-89abcdef0123",
	}
	polled := events.Result{
		ID: "polled:1795223511288-0", Type: events.ResultPolled, Source: "/lockstep/worker/w1", Time: goldenTime,
		Repo: repo(t, "Acme/widgets"), Deliveries: []string{"poll/1"}, Attempts: 1, Took: 5 * time.Millisecond,
		Fence: 1795223511284005, Due: 2, LeftOut: 3,
	}
	purged := events.Result{
		ID: "purge/Acme/widgets/1795223511284006", Type: events.ResultPurged, Source: "/lockstep/cli", Time: goldenTime,
		Repo: repo(t, "Acme/widgets"), Took: 40 * time.Millisecond, Fence: 1795223511284006, Commit: sha1A,
	}
	full := synced
	full.ID, full.Full, full.Truncated = "synced:1795223511289-0", true, false
	full.Files = []events.File{
		{Path: "new.txt", From: "old.txt", Status: events.FileRenamed},
		{Path: "run.sh", Status: events.FileModeChanged},
		{Path: "caf\ufffd.txt", Raw: "Y2Fm6S50eHQ=", Status: events.FileAdded},
		{Path: "caf\u00e9.md", From: "caf\ufffd.md", FromRaw: "Y2Fm6S5tZA==", Status: events.FileRenamed},
		{Path: "to/etc", Status: events.FileAdded, Outside: true},
	}
	verified, unverified := synced, failed
	verified.ID, verified.Files, verified.Truncated, verified.Forced = "verified:1795223511290-0", nil, false, true
	verified.Verification = &events.Verification{
		Verified: true, By: "Alice <alice@example.com>", Key: "ED4024A936F581F97126A49EE39454EAD5DBB72B", Format: "openpgp",
		Object: "commit", ID: sha1B, Commits: 3, Partial: true,
	}
	unverified.ID, unverified.Class, unverified.Retryable = "unverified:1795223511291-0", events.ClassRefused, false
	unverified.Error = "sync Acme/widgets: tag 89abcdef0123 of refs/tags/v1 is not verified, as app search requires: it is not signed"
	unverified.Verification = &events.Verification{Object: "tag", ID: sha1B, Reason: "it is not signed"}
	missing := synced
	missing.ID, missing.Files, missing.Truncated = "synced:1795223511292-0", []events.File{{Path: "libs/a", Status: events.FileModified}}, false
	missing.Missing = []events.MissingSubmodule{
		{Path: "libs/a", Class: events.ClassAuth, Error: "git.example.com requires a credential; name one in the change"},
		{Path: "caf\ufffd", Raw: "Y2Fm6Q==", Class: events.ClassNetwork, Error: "dial git.example.com: timeout"},
	}
	counted, view := synced, synced
	counted.ID, counted.Files, counted.Truncated, counted.Views = "synced:1795223511292-0", nil, false, &events.ViewCounts{Changed: 1, Unchanged: 9999}
	view.ID, view.Type, view.View, view.Subtree = counted.ID+"/guide", events.ResultView, "guide", sha1A
	view.Deliveries = nil
	view.Files, view.Truncated = []events.File{{Path: "docs/guide/start.md", Status: events.FileModified}}, false
	return map[string]events.Result{
		"result_missing_v1": missing, "result_views_v1": counted, "result_view_v1": view,
		"result_verified_v1": verified, "result_unverified_v1": unverified,
		"result_full_v1": full, "result_synced_v1": synced, "result_failed_v1": failed, "result_removed_v1": removed,
		"result_moved_v1": moved, "result_polled_v1": polled, "result_purged_v1": purged,
	}
}

// golden returns the file's content in compact form. With -update it first writes value to it.
func golden(t *testing.T, name string, value any) []byte {
	t.Helper()
	if *update {
		out, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, out, "", "  "); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(goldenPath(name), append(indented.Bytes(), '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return readGolden(t, name)
}

func goldenPath(name string) string { return filepath.Join("testdata", name+".json") }

func readGolden(t *testing.T, name string) []byte {
	t.Helper()
	file, err := os.ReadFile(goldenPath(name))
	if err != nil {
		t.Fatalf("%v; run go test ./events -update", err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, file); err != nil {
		t.Fatal(err)
	}
	return compact.Bytes()
}

func TestChangesMatchGoldenFiles(t *testing.T) {
	for name, want := range goldenChanges(t) {
		t.Run(name, func(t *testing.T) {
			file := golden(t, name, want)
			got, err := events.ParseChange(file)
			if err != nil || got != want {
				t.Errorf("decoded %+v, %v\nwant    %+v", got, err, want)
			}
			if out, err := json.Marshal(got); err != nil || !bytes.Equal(out, file) {
				t.Errorf("encoded %s, %v\nwant    %s", out, err, file)
			}
		})
	}
}

func TestResultsMatchGoldenFiles(t *testing.T) {
	for name, want := range goldenResults(t) {
		t.Run(name, func(t *testing.T) {
			file := golden(t, name, want)
			got, err := events.ParseResult(file)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("decoded %+v, %v\nwant    %+v", got, err, want)
			}
			if out, err := json.Marshal(got); err != nil || !bytes.Equal(out, file) {
				t.Errorf("encoded %s, %v\nwant    %s", out, err, file)
			}
		})
	}
}

// The flat form is only parsed; its golden file is what redis-cli would write.
func TestPlainFieldsMatchGoldenFile(t *testing.T) {
	file := golden(t, "change_plain", map[string]string{
		"id": "job-42", "type": "pushed", "repo": "Acme/widgets", "url": "https://github.com/Acme/widgets.git", "ref": "main",
		"app": "docs", "credential": "github-bot", "before": sha1A, "after": sha1B, "force": "false", "on_busy": "skip",
	})
	want := goldenChanges(t)["change_pushed_v1"]
	want.ID, want.Source, want.Time, want.OnBusy = "job-42", "/lockstep/plain", time.Time{}, events.BusySkip
	got, err := events.ParseChange(file)
	if err != nil || got != want {
		t.Errorf("decoded %+v, %v\nwant    %+v", got, err, want)
	}
	changeRoundTrip(t, got)
}

// A later minor version may add fields to any object; today's parser ignores them.
func TestFieldsOfALaterMinorVersionAreIgnored(t *testing.T) {
	const added = `{"added_later":{"n":[1,"x",null]},"`
	start := regexp.MustCompile(`\{\s*"`) // of an object; names of streams have braces, too
	later := func(file []byte) []byte { return start.ReplaceAllLiteral(file, []byte(added)) }
	for _, name := range append(slices.Collect(maps.Keys(goldenChanges(t))), "change_plain") {
		file := readGolden(t, name)
		want, err := events.ParseChange(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := events.ParseChange(later(file)); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	for name, want := range goldenResults(t) {
		if got, err := events.ParseResult(later(readGolden(t, name))); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}
