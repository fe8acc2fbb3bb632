package wire

import (
	"context"
	"errors"
	"io"
	"net"
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
			w := &monitor{maxPack: 1 << 20}
			defer w.close()
			command := &uploadPack{conn: ours, stdin: ours, stdout: strings.NewReader("0100\x01PACK"), wait: func() error { return tc.exit }}
			body := command.output(t.Context(), w, false, nil)
			defer body.Close()

			_, err := io.Copy(io.Discard, sideband.NewDemuxer(sideband.Sideband64k, body))

			testenv.MustFail(t, remoteError(t.Context(), "example.org", Auth{}, w.firstError(), err), tc.class, events.Retryable)
		})
	}
}

func TestIdleSSHServer(t *testing.T) {
	for name, tc := range map[string]struct {
		listing bool
		want    error
		after   time.Duration
	}{
		"list of refs": {true, errNoAnswer, refsTimeout},
		"pack":         {false, errIdle, idleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				w := &monitor{maxPack: 1 << 20}
				defer w.close()
				command := &uploadPack{conn: ours, stdout: ours}
				body := command.output(t.Context(), w, tc.listing, nil)
				defer body.Close()
				began := time.Now()

				_, err := body.Read(make([]byte, 4))

				testenv.MustFail(t, remoteError(context.Background(), "example.org", Auth{}, w.firstError(), err), events.ClassNetwork, events.Retryable)
				if took := time.Since(began); !errors.Is(w.firstError(), tc.want) || took != tc.after {
					t.Errorf("got %v after %v, want %v after %v", w.firstError(), took, tc.want, tc.after)
				}
			})
		})
	}
}

// TestSSHServerIdleAfterFirstByte checks that the limit for the first byte does not apply to the others.
func TestSSHServerIdleAfterFirstByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		w := &monitor{maxPack: 1 << 20}
		defer w.close()
		command := &uploadPack{conn: ours, stdout: ours}
		body := command.output(t.Context(), w, true, nil)
		defer body.Close()
		go func() {
			_, _ = theirs.Write([]byte("0"))
			time.Sleep(2 * refsTimeout)
			_, _ = theirs.Write([]byte("1"))
		}()

		_, err := io.ReadFull(body, make([]byte, 2))

		if err != nil {
			t.Errorf("%v: %v", err, w.firstError())
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
	if got := keys.algorithms(server.Addr()); len(got) != 1 || got[0] != ssh.KeyAlgoED25519 {
		t.Errorf("got %v", got)
	}
	if got := keys.algorithms("127.0.0.1:1"); got != nil {
		t.Errorf("got %v for an unknown host", got)
	}
}
