package cli

import (
	"os"
	"testing"

	"lockstep/internal/proctest"
)

// TestWorkspaceGetsNoDescriptors lists what a command in a workspace has open, as this user and as an ordinary one: its standard input, output and
// error. With a descriptor of a file on the volume it could change what is mounted read-only for it, or take a lock that other processes wait for.
func TestWorkspaceGetsNoDescriptors(t *testing.T) {
	t.Parallel()
	p, env := newWorkspaces(t, "1")
	const list = `for fd in 3 4 5 6 7 8 9; do if [ -e /proc/$$/fd/$fd ]; then echo "$fd $(readlink /proc/$$/fd/$fd)"; fi; done; echo end` // 10 is the shell's
	for _, kind := range bothKinds {
		if got := inWorkspace(t, env, list, "--kind", kind); got != "end" {
			t.Errorf("%s: the command has open:\n%s", kind, got)
		}
	}
	if os.Getuid() != 0 {
		return
	}
	giveTo(t, someUser, p.volume.Root(), scratchOf(env), homeOf(env))
	for _, kind := range bothKinds {
		cmd := asUser(t, someUser, workspaceCommand(t, env, "exec", "acme/widgets", "--kind", kind, "--", "sh", "-ec", list))
		if got := proctest.Must(cmd.Output())(t); string(got) != "end\n" {
			t.Errorf("%s, ordinary user: the command has open:\n%s", kind, got)
		}
	}
}
