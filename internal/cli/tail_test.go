package cli

import (
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

func TestTailUntilTheUserEndsIt(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, repo := range []string{"other/widgets", "acme/widgets"} {
		change := proctest.Must(events.NewChange(events.Change{URL: "https://git.example.com/" + repo + ".git"}))(t)
		proctest.Must(0, app.PublishChange(t.Context(), server.Client(), events.DefaultNamespace, change))(t)
	}
	tail := proctest.Start(t, "tail", "Acme/", "--since", "1h", "--changes", "--redis", server.URL())
	tail.AwaitLog("asked pushed acme/widgets")
	if code := tail.Terminate(); code != term.ExitDone || strings.Contains(tail.Log.String(), "other/") {
		t.Errorf("exit code %d, want 0, without the other repository:\n%s", code, tail.Log.String())
	}
}
