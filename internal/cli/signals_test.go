package cli

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/proctest"
	"lockstep/internal/term"
)

// services returns the arguments of the commands that run until SIGTERM, with a line of their log from when they run.
func services(t *testing.T) map[string]struct {
	args  []string
	ready string
} {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	proctest.Must(0, os.WriteFile(token, []byte("lst_none"), 0o600))(t)
	return map[string]struct {
		args  []string
		ready string
	}{
		"serve":  {[]string{"serve", "--root", t.TempDir()}, "worker takes changes"},
		"follow": {[]string{"follow", "http://127.0.0.1:1", "--root", t.TempDir(), "--token-file", token}, "worker takes changes"},
	}
}

// TestServicesSurviveSignals sends the signals of a closed terminal and of tools that ask other services to reload. SIGTERM must still
// be what ends the process: the kernel delivers it after them, since its number is higher.
func TestServicesSurviveSignals(t *testing.T) {
	t.Parallel()
	for name, tc := range services(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := proctest.Start(t, tc.args...)
			p.AwaitLog(tc.ready)
			for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2} {
				proctest.Must(0, p.Cmd.Process.Signal(s))(t)
			}
			if code := p.Terminate(); code != term.ExitDone {
				t.Errorf("%v, want exit status 0", p.Cmd.ProcessState)
			}
		})
	}
}

// TestServicesSurviveTheReaderOfTheirLog closes the pipe that a service logs to. It logs again when it drains.
func TestServicesSurviveTheReaderOfTheirLog(t *testing.T) {
	t.Parallel()
	for name, tc := range services(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := proctest.Command(t, tc.args...)
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = write
			p := proctest.StartCommand(t, cmd)
			_ = write.Close()
			lines := bufio.NewScanner(read)
			for lines.Scan() && !strings.Contains(lines.Text(), tc.ready) {
			}
			_ = read.Close()
			if code := p.Terminate(); code != term.ExitDone {
				t.Errorf("%v, want exit status 0", p.Cmd.ProcessState)
			}
		})
	}
}
