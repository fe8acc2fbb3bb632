package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/gitserver"
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

			mustFail(t, remoteError(t.Context(), "example.org", Auth{}, w.firstError(), err), tc.class, events.Retryable)
		})
	}
}

func TestIdleSSHServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		w := &monitor{maxPack: 1 << 20}
		defer w.close()
		command := &uploadPack{conn: ours, stdout: ours}
		body := command.output(t.Context(), w, true, nil)
		defer body.Close()

		_, err := body.Read(make([]byte, 4))

		mustFail(t, remoteError(context.Background(), "example.org", Auth{}, w.firstError(), err), events.ClassNetwork, events.Retryable)
		if !errors.Is(w.firstError(), errIdle) {
			t.Errorf("got %v", err)
		}
	})
}

func TestHostKeyAlgorithmsOfKnownHosts(t *testing.T) {
	git := must(gitserver.Start(t.TempDir()))(t)
	t.Cleanup(git.Close)
	server := must(git.StartSSH())(t)
	t.Cleanup(server.Close)
	n := must(NewNetwork(Config{}))(t)
	defer n.Close()
	keys := must(n.hostKeys(server.KnownHosts()))(t)
	if got := keys.algorithms(server.Addr()); len(got) != 1 || got[0] != ssh.KeyAlgoED25519 {
		t.Errorf("got %v", got)
	}
	if got := keys.algorithms("127.0.0.1:1"); got != nil {
		t.Errorf("got %v for an unknown host", got)
	}
}
