package events_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lockstep/events"
)

func Example() {
	change, err := events.NewChange(events.Change{URL: "https://github.com/acme/widgets.git", App: "docs"})
	if err != nil {
		fmt.Println(err)
		return
	}
	document, err := json.Marshal(change) // a CloudEvents document to publish
	if err != nil {
		fmt.Println(err)
		return
	}
	again, err := events.ParseChange(document)
	fmt.Println(again.Repo, again.Type.Operation(), err)
	// Output: acme/widgets sync <nil>
}

func ExampleParseRepoPath() {
	p, err := events.ParseRepoPath("Acme/Widgets")
	fmt.Println(p, p.Key(), err)

	_, err = events.ParseRepoPath("acme/../../etc")
	fmt.Println(errors.Is(err, events.ErrBadRepoPath), err)
	// Output:
	// Acme/Widgets acme/widgets <nil>
	// true not a repository path: "acme/../../etc": a segment "." or ".." would leave the root
}

func ExampleRepoPathFromURL() {
	p, err := events.RepoPathFromURL("https://gitlab.com/group/sub/name.git")
	fmt.Println(p, err)
	// Output: group/sub/name <nil>
}

func ExampleParseRef() {
	for _, s := range []string{"main", "feat/login", "refs/tags/v1.0", "HEAD"} {
		r, err := events.ParseRef(s)
		fmt.Printf("%q %q %v\n", r, r.Suffix(), err)
	}
	// Output:
	// "refs/heads/main" "main" <nil>
	// "refs/heads/feat/login" "feat%2Flogin" <nil>
	// "refs/tags/v1.0" "refs%2Ftags%2Fv1.0" <nil>
	// "" "" <nil>
}

func ExampleNamespace() {
	n, err := events.ParseNamespace("lockstep:{1}:")
	fmt.Println(n.Changes(), n.Results(), err)
	// Output: lockstep:{1}:changes lockstep:{1}:results <nil>
}

// A publisher creates a change and sends it as a CloudEvents document.
func ExampleNewChange() {
	c, err := events.NewChange(events.Change{
		ID:     "72d3162e",
		Source: "/lockstep/cli",
		Time:   time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC),
		URL:    "https://github.com/acme/widgets.git",
		App:    "docs",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	doc, _ := json.MarshalIndent(c, "", "  ")
	fmt.Println(string(doc))
	// Output:
	// {
	//   "specversion": "1.0",
	//   "id": "72d3162e",
	//   "source": "/lockstep/cli",
	//   "type": "lockstep.change.pushed.v1",
	//   "subject": "acme/widgets",
	//   "time": "2026-11-21T01:02:03Z",
	//   "datacontenttype": "application/json",
	//   "data": {
	//     "repo": "acme/widgets",
	//     "url": "https://github.com/acme/widgets.git",
	//     "app": "docs",
	//     "on_busy": "wait"
	//   }
	// }
}

func ExampleParseChange() {
	c, err := events.ParseChange([]byte(`{
		"specversion": "1.0", "id": "72d3162e", "source": "/hooks/github", "type": "lockstep.change.pushed.v1",
		"data": {"repo": "acme/widgets", "url": "https://github.com/acme/widgets.git", "ref": "main"}
	}`))
	fmt.Println(c.ID, c.Repo, c.Ref, err)
	// Output: 72d3162e acme/widgets refs/heads/main <nil>
}

// The flat form is what "redis-cli XADD lockstep:{0}:changes * url …" adds to the stream.
func ExampleParseChange_plain() {
	c, err := events.ParseChange([]byte(`{"url":"https://github.com/acme/widgets.git"}`))
	fmt.Println(c.Type, c.Repo, c.OnBusy, err)

	_, err = events.ParseChange([]byte(`{"url":"https://robot:hunter2@github.com/acme/widgets.git"}`))
	fmt.Println(events.DispositionOf(err), "-", err)
	// Output:
	// lockstep.change.pushed.v1 acme/widgets wait <nil>
	// malformed - malformed change: url carries credentials; name a credential instead
}

// A consumer reads the files that changed from a result.
func ExampleParseResult() {
	r, err := events.ParseResult([]byte(`{
		"specversion": "1.0", "id": "1", "source": "/lockstep/worker/w1", "type": "lockstep.result.synced.v1",
		"data": {"repo": "acme/widgets", "ref": "refs/heads/main", "path": "acme/widgets", "took_ms": 31,
			"files": [{"path": "a.txt", "status": "modified"}], "a_field_added_later": true}
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range r.Files {
		fmt.Println(r.Repo, f.Status, f.Path, r.Took)
	}
	// Output: acme/widgets modified a.txt 31ms
}

func ExampleDispositionOf() {
	err := events.Errorf(events.Permanent, events.ClassAuth, "the remote refused credential %q", "github-bot")
	err = fmt.Errorf("sync acme/widgets: %w", err)
	fmt.Println(events.DispositionOf(err), events.ClassOf(err))
	fmt.Println(events.DispositionOf(errors.New("unforeseen")))
	// Output:
	// permanent auth
	// retryable
}
