package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/execute"
	"lockstep/internal/watch"
)

func shell(script string) execute.Command {
	return execute.Command{Words: []string{"sh", "-c", script}, Timeout: time.Minute, Environ: os.Environ()}
}

// hooked is a world in which the app hook watches acme/a without a URL.
type hooked struct {
	*world
	root string // of the volume
	dir  string // for the command's files

	unmounted atomic.Bool
}

func (h *hooked) mounted(context.Context) error {
	if h.unmounted.Load() {
		return errors.New("not mounted")
	}
	return nil
}

func newHooked(t *testing.T) *hooked {
	h := &hooked{world: newWorld(t), root: t.TempDir(), dir: t.TempDir()}
	h.put(watch.Watch{App: "hook", Repo: must(events.ParseRepoPath("acme/a"))(t), URL: "https://git.example.org/acme/a"})
	return h
}

// runs starts a notifier that runs a script for the app, with $DIR for its files.
func (h *hooked) runs(script string) (stop func()) {
	h.t.Helper()
	return h.run(func(c *Config) {
		c.Commands, c.Root = map[string]execute.Command{"hook": shell(h.script(script))}, h.root
		c.Mounted = h.mounted
		c.schedule = slices.Repeat([]time.Duration{20 * time.Millisecond}, 100)
		c.claim, c.timeout = shortClaim, shortClaim/3
	})
}

func (h *hooked) script(text string) string { return "DIR=" + h.dir + "\n" + text }

// tree publishes a tree and returns its result.
func (h *hooked) tree(n int) events.Result {
	h.t.Helper()
	r := synced(h.t, fmt.Sprintf("%d//hook acme/a", n), "hook", "acme/a")
	r.After = fmt.Sprintf("%040x", n)
	r.Tree = fmt.Sprintf(".lockstep/repos/acme/a/trees/%d-%s", n, r.After[:12])
	git := filepath.Join(h.root, r.Tree, ".git")
	must(0, os.MkdirAll(git, 0o755))(h.t)
	must(0, os.MkdirAll(filepath.Join(h.root, "acme"), 0o755))(h.t)
	for name, text := range map[string]string{"lockstep-commit": r.After, "lockstep-ref": "refs/heads/main", "lockstep-pin": ""} {
		must(0, os.WriteFile(filepath.Join(git, name), []byte(text), 0o644))(h.t)
	}
	link := filepath.Join(h.root, "acme/a")
	_ = os.Remove(link)
	must(0, os.Symlink("../"+r.Tree, link))(h.t)
	return r
}

// read returns the lines of a file of the command, none before it exists.
func (h *hooked) read(name string) []string {
	text, _ := os.ReadFile(filepath.Join(h.dir, name))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func TestCommandRunsInTheCurrentTreeIfThatOfTheResultIsGone(t *testing.T) {
	h := newHooked(t)
	gone := h.tree(1)
	now := h.tree(2)
	must(0, os.RemoveAll(filepath.Join(h.root, gone.Tree)))(t)
	h.runs(`echo "$LOCKSTEP_COMMIT" >>$DIR/runs`)
	again := gone
	again.ID = "again//hook acme/a"
	h.publish(gone, again)
	h.await(OutcomeDelivered, 2)
	if runs := h.read("runs"); !slices.Equal(runs, []string{now.After}) {
		t.Errorf("runs %q", runs)
	}
}

func TestRunOfARemovedRefIsDroppedIfTheVolumeIsMounted(t *testing.T) {
	h := newHooked(t)
	gone := h.tree(1)
	must(0, os.RemoveAll(filepath.Join(h.root, gone.Tree)))(t)
	must(0, os.Remove(filepath.Join(h.root, "acme/a")))(t)
	h.unmounted.Store(true)
	h.runs(`echo run >>$DIR/runs`)
	h.publish(gone)
	h.await(OutcomeFailed, 2)
	h.unmounted.Store(false)
	h.await(OutcomeUnwatched, 1)
	if h.waiting() != 0 || h.read("runs")[0] != "" {
		t.Errorf("%d wait, runs %q", h.waiting(), h.read("runs"))
	}
}

func TestRunWaitsForANotifierWithTheCommand(t *testing.T) {
	h := newHooked(t)
	stop := h.runs(`exit 1`)
	h.publish(h.tree(1), h.tree(2))
	h.await(OutcomeFailed, 1)
	stop()
	stop = h.run(soon(100))
	h.eventually(func() bool { return strings.Contains(h.log.String(), errNoCommand.Error()) }, "a failure")
	stop()
	h.runs(`echo "$LOCKSTEP_NAME" >>$DIR/runs`)
	h.await(OutcomeDelivered, 2)
	if runs := h.read("runs"); !slices.Equal(runs, []string{"acme/a", "acme/a"}) {
		t.Errorf("runs %q", runs)
	}
}

// A run lasts for several claims. Two notifiers must not both run it.
func TestClaimIsRenewedDuringARun(t *testing.T) {
	h := newHooked(t)
	script := `echo run >>$DIR/runs; sleep 5`
	h.runs(script)
	h.runs(script)
	h.publish(h.tree(1))
	h.await(OutcomeDelivered, 1)
	if runs := h.read("runs"); len(runs) != 1 {
		t.Errorf("%d runs", len(runs))
	}
}

func TestCommandIsKilledWhenItsClaimIsLost(t *testing.T) {
	h := newHooked(t)
	h.runs(`echo run >>$DIR/runs; test $(wc -l <$DIR/runs) -gt 1 || exec sleep 1000`)
	h.publish(h.tree(1))
	h.eventually(func() bool { return h.read("runs")[0] != "" }, "the command runs")
	must(h.redis.Del(t.Context(), namespace.Notifications()+":claims").Result())(t)
	h.await(OutcomeDelivered, 1)
	if runs := h.read("runs"); len(runs) != 2 {
		t.Errorf("%d runs", len(runs))
	}
}

func TestRunOfAKilledProcessIsRepeated(t *testing.T) {
	h := newHooked(t)
	h.run()() // creates the group
	result := h.tree(1)
	kill := h.child("LOCKSTEP_TEST_ROOT="+h.root, "LOCKSTEP_TEST_SCRIPT="+h.script("echo first >>$DIR/runs; exec sleep 1000"))
	h.publish(result)
	h.eventually(func() bool { return h.read("runs")[0] != "" }, "the command runs")
	kill()
	h.runs("echo second >>$DIR/runs")
	h.await(OutcomeDelivered, 1)
	if runs := h.read("runs"); !slices.Equal(runs, []string{"first", "second"}) {
		t.Errorf("runs %q", runs)
	}
	pin := must(os.Open(filepath.Join(h.root, result.Tree, ".git/lockstep-pin")))(t)
	defer pin.Close()
	h.eventually(func() bool { return syscall.Flock(int(pin.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil },
		"the command of the killed process is killed")
}
