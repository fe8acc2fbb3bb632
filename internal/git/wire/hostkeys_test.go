package wire

import (
	"bytes"
	"crypto/ed25519"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep/internal/testenv"
)

// otherKey returns an encoded key that is not the server's.
func otherKey(t *testing.T) string {
	t.Helper()
	key := testenv.Must(ssh.NewPublicKey(ed25519.PublicKey(bytes.Repeat([]byte{7}, ed25519.PublicKeySize))))(t)
	return strings.Fields(string(ssh.MarshalAuthorizedKey(key)))[1]
}

// TestUnreadableDefaultKnownHostsAreSkipped connects with the file of the system where the home directory is a file, as with HOME=/dev/null. A file
// that is configured must be readable.
func TestUnreadableDefaultKnownHostsAreSkipped(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	dir := t.TempDir()
	system := filepath.Join(dir, "ssh_known_hosts")
	testenv.Must(0, os.WriteFile(system, []byte(w.line+"\n"), 0o600))(t)
	var logged bytes.Buffer
	n := testenv.Must(NewNetwork(Config{Log: slog.New(slog.NewTextHandler(&logged, nil))}))(t)
	t.Cleanup(n.Close)
	n.knownHosts = []string{filepath.Join(system, ".ssh/known_hosts"), system}
	connect := func() error {
		session, err := n.DialAndList(t.Context(), w.URL(widgets), Auth{SSHKey: w.ClientKey}, false, Limits{Timeout: time.Minute}, "refs/heads/")
		if err == nil {
			session.Close()
		}
		return err
	}
	for range 3 {
		if err := connect(); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(logged.String(), "known_hosts file skipped"); got != 1 {
		t.Errorf("%d warnings, want one: %s", got, logged.String())
	}
	n.knownHostsRequired = true
	if err := connect(); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("with a configured file: %v", err)
	}
}
