package status

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/intake"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

// TestUnwatchedWebhooksAreListed reads the status before and after webhooks of repositories without a watch.
func TestUnwatchedWebhooksAreListed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	cfg := config.Config{Redis: server.URL(), Prefix: string(events.DefaultNamespace)}
	show := func() (screen, text string) {
		s := proctest.Must(read(t.Context(), server.Client(), cfg, nil, searchTimeout))(t)
		var rows strings.Builder
		s.Table(&rows)
		return term.Align(rows.String()), string(proctest.Must(json.Marshal(s))(t))
	}
	if screen, text := show(); strings.Contains(screen, "hooks") || !strings.Contains(text, `"webhooks_unwatched":{"count":0,"repositories":[]}`) {
		t.Errorf("without any:\n%s\n%s", screen, text)
	}
	j := intake.NewJournal(server.Client(), events.DefaultNamespace)
	for n := range 25 {
		for range 1 + (24-n)/24 { // two of the first
			repo := fmt.Sprintf("acme/r%02d", n)
			j.Record(intake.Received{Source: "hub", Verified: true, Outcome: intake.Ignored, Repo: repo, Unwatched: true})
		}
	}
	j.Close()
	screen, text := show()
	if want := "26 in the last hour without a watch: acme/r00, acme/r01, acme/r02 and others; see watch add"; !strings.Contains(screen, want) {
		t.Errorf("no %q in\n%s", want, screen)
	}
	if !strings.Contains(text, `"webhooks_unwatched":{"count":26,"repositories":["acme/r00",`) || strings.Contains(text, "acme/r20") {
		t.Error(text)
	}
}
