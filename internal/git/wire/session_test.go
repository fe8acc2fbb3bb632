package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestBrokenSSHConnection breaks a connection in the middle of a pack, which is a network error.
func TestBrokenSSHConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		exit  error
		class events.Class
	}{
		"broken": {&ssh.ExitMissingError{}, events.ClassNetwork},
		"ended":  {nil, events.ClassServer},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			w := newMonitor(nil)
			command := &uploadPack{conn: ours, stdin: ours, stdout: strings.NewReader("0100\x01PACK"), wait: func() error { return tc.exit }}
			body := outputOf(t, command, w, false)
			defer body.Close()

			_, err := io.Copy(io.Discard, sideband.NewDemuxer(sideband.Sideband64k, body))

			testenv.MustFail(t, remoteError(t.Context(), "example.org", Auth{}, w.firstError(), err), tc.class, events.Retryable)
		})
	}
}

func TestIdleSSHServer(t *testing.T) {
	for name, tc := range map[string]struct {
		listing bool
		sent    string
		want    timeoutFault
	}{
		"list of refs":              {true, "", timeoutFault{"refs", 60 * time.Second}},
		"pack":                      {false, "", timeoutFault{"pack", 120 * time.Second}},
		"list of refs, after bytes": {true, "0", timeoutFault{"silence", 60 * time.Second}},
		"pack, after bytes":         {false, "0", timeoutFault{"silence", 60 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				w := newMonitor(nil)
				command := &uploadPack{conn: ours, stdout: ours}
				body := outputOf(t, command, w, tc.listing)
				defer body.Close()
				go func() { _, _ = theirs.Write([]byte(tc.sent)) }()
				began := time.Now()

				_, err := io.ReadFull(body, make([]byte, 4))

				testenv.MustFail(t, remoteError(context.Background(), "example.org", Auth{}, w.firstError(), err), events.ClassNetwork, events.Retryable)
				late, ok := errors.AsType[*timeoutFault](w.firstError())
				if took := time.Since(began); !ok || *late != tc.want || took != late.limit {
					t.Errorf("got %v after %v, want %v", w.firstError(), took, &tc.want)
				}
			})
		})
	}
}

// newMonitor returns a monitor with the default timeouts.
func newMonitor(next http.RoundTripper) *monitor {
	return &monitor{maxPack: 1 << 20, next: next, timeouts: new(Network).timeouts("")}
}

func outputOf(t *testing.T, command *uploadPack, w *monitor, listing bool) *commandOutput {
	ctx, cancel := context.WithCancelCause(t.Context())
	return command.output(ctx, cancel, w.timeouts.awaitFirst(cancel, listing), w, listing, nil)
}

// TestSilenceIsThatOfTheHost has the host send at the last moment, and the reader take its time.
func TestSilenceIsThatOfTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		w := newMonitor(nil)
		w.timeouts.Silence = 5 * time.Minute
		command := &uploadPack{conn: ours, stdout: ours}
		body := outputOf(t, command, w, true)
		defer body.Close()
		go func() {
			for _, pause := range []time.Duration{59 * time.Second, 4 * time.Minute} {
				time.Sleep(pause)
				_, _ = theirs.Write([]byte("0"))
			}
		}()
		for n := range 2 {
			if n > 0 {
				time.Sleep(6 * time.Minute)
			}
			if _, err := body.Read(make([]byte, 1)); err != nil {
				t.Errorf("byte %d: %v: %v", n+1, err, w.firstError())
			}
		}
	})
}

func TestHostKeyAlgorithmsOfKnownHosts(t *testing.T) {
	git := testenv.Must(gitserver.Start(t.TempDir()))(t)
	t.Cleanup(git.Close)
	server := testenv.Must(git.StartSSH())(t)
	t.Cleanup(server.Close)
	n := testenv.Must(NewNetwork(Config{}))(t)
	defer n.Close()
	keys := testenv.Must(n.hostKeys(server.KnownHosts()))(t)
	if got := keys.algorithms(server.Addr()); !slices.Equal(got, []string{ssh.KeyAlgoED25519, ssh.CertAlgoED25519v01}) {
		t.Errorf("got %v", got)
	}
	if got := keys.algorithms("127.0.0.1:1"); got != nil {
		t.Errorf("got %v for an unknown host", got)
	}
}
