package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestImportThatIsKilledIsContinued kills lockstep import at random moments.
func TestImportThatIsKilledIsContinued(t *testing.T) {
	testenv.Long(t)
	from, to := redistest.Start(t), redistest.Start(t)
	var watches []watch.Watch
	for i := range 400 {
		repo := fmt.Sprintf("acme/repo-%03d", i)
		watches = append(watches, proctest.Must(watch.New(watch.Watch{App: "docs", URL: "https://git.example.com/" + repo}))(t))
		proctest.Must(from.Client().HSet(t.Context(), string(events.DefaultNamespace)+"repo:"+repo, "repo", repo, "given:refs/heads/main:docs", fmt.Sprintf("%040d", i), "watched:refs/heads/main", "1").Result())(t)
	}
	client := from.Client()
	proctest.Must(watch.NewRegistry(client, events.DefaultNamespace).Put(t.Context(), watches...))(t)
	proctest.Must(1, third(access.NewTokens(client, events.DefaultNamespace).Create(t.Context(), "docs")))(t)
	export := func(server *redistest.Server) []string {
		t.Helper()
		stdout, stderr, code := proctest.RunLockstep(t, nil, "export", "-", "--redis", server.URL())
		if code != 0 {
			t.Fatalf("exit code %d\n%s", code, stderr)
		}
		lines := strings.Split(strings.TrimSpace(stdout), "\n")[1:]
		slices.Sort(lines)
		return lines
	}
	want := export(from)
	file := filepath.Join(t.TempDir(), "lockstep.export")
	if _, stderr, code := proctest.RunLockstep(t, nil, "export", file, "--redis", from.URL()); code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	registry, killed := watch.NewRegistry(to.Client(), events.DefaultNamespace), 0
	for step := int64(60); step < 400; step += 60 { // kill it once so many repositories are watched
		p := proctest.Start(t, "import", file, "--redis", to.URL())
		proctest.Eventually(t, func() bool {
			select {
			case <-p.Done:
				return true
			default:
				return proctest.Must(registry.Count(t.Context()))(t) >= step
			}
		}, "%d repositories are imported", step)
		p.Kill()
		if p.Cmd.ProcessState.ExitCode() < 0 {
			killed++
		}
	}
	if killed == 0 {
		t.Error("no import was killed, so the test proves nothing")
	}
	if stdout, stderr, code := proctest.RunLockstep(t, nil, "import", file, "--redis", to.URL()); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if got := export(to); !slices.Equal(got, want) {
		t.Errorf("%d imports were killed; then %d lines, want %d:\n%.2000s", killed, len(got), len(want), strings.Join(got, "\n"))
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }
