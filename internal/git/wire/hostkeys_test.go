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

// TestHostCertificates connects to a host with a certificate, as OpenSSH would: if it is not accepted, the key in it counts.
func TestHostCertificates(t *testing.T) {
	t.Parallel()
	signer := func() ssh.Signer {
		_, private, err := ed25519.GenerateKey(nil)
		return testenv.Must(ssh.NewSignerFromKey(testenv.Must(private, err)(t)))(t)
	}
	line := func(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }
	ours, other := signer(), signer()
	const refused = "its certificate is not accepted: "
	for name, tc := range map[string]struct {
		known func(host, plain string) string
		edit  func(*ssh.Certificate)
		want  string // part of the error; "" for none
	}{
		"of a known authority": {func(host, plain string) string { return "@cert-authority " + host + " " + line(ours.PublicKey()) }, nil, ""},
		"of one for all hosts": {func(host, plain string) string {
			return "@cert-authority [127.0.0.*]:" + port(host) + " " + line(ours.PublicKey())
		}, nil, ""},
		"for this host's name": {func(host, plain string) string { return "@cert-authority " + host + " " + line(ours.PublicKey()) }, func(c *ssh.Certificate) { c.ValidPrincipals = []string{"git.test", "127.0.0.1"} }, ""},
		"for another name":     {func(host, plain string) string { return "@cert-authority " + host + " " + line(ours.PublicKey()) }, func(c *ssh.Certificate) { c.ValidPrincipals = []string{"git.test"} }, refused},
		"for another name, the key known": {func(host, plain string) string {
			return "@cert-authority " + host + " " + line(ours.PublicKey()) + "\n" + plain
		}, func(c *ssh.Certificate) { c.ValidPrincipals = []string{"git.test"} }, ""},
		"expired":                          {func(host, plain string) string { return "@cert-authority " + host + " " + line(ours.PublicKey()) }, func(c *ssh.Certificate) { c.ValidBefore = 1 }, "expired"},
		"of a user":                        {func(host, plain string) string { return "@cert-authority " + host + " " + line(ours.PublicKey()) }, func(c *ssh.Certificate) { c.CertType = ssh.UserCert }, refused},
		"of another authority":             {func(host, plain string) string { return "@cert-authority " + host + " " + line(other.PublicKey()) }, nil, refused + "ssh: no authorities"},
		"of an authority for another host": {func(host, plain string) string { return "@cert-authority git.test " + line(ours.PublicKey()) }, nil, refused + "ssh: no authorities"},
		"no authority is known":            {func(host, plain string) string { return "" }, nil, refused + "ssh: no authorities"},
		"the key is known":                 {func(host, plain string) string { return plain }, nil, ""},
		"another key is known":             {func(host, plain string) string { return host + " " + line(other.PublicKey()) }, nil, "in between"},
		"another key is known, but the authority is": {func(host, plain string) string {
			return host + " " + line(other.PublicKey()) + "\n@cert-authority " + host + " " + line(ours.PublicKey())
		}, nil, ""},
		"the authority is revoked": {func(host, plain string) string {
			return "@cert-authority " + host + " " + line(ours.PublicKey()) + "\n@revoked * " + line(ours.PublicKey())
		}, nil, refused},
		"the key is revoked": {func(host, plain string) string {
			_, key, _ := strings.Cut(plain, " ")
			return "@cert-authority " + host + " " + line(ours.PublicKey()) + "\n@revoked * " + key
		}, nil, "in between"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSSHWorld(t)
			edit := tc.edit
			if edit == nil {
				edit = func(*ssh.Certificate) {}
			}
			testenv.Must(0, w.Certify(ours, edit))(t)
			for _, err := range w.connect(t, tc.known(w.host, w.line)+"\n") {
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) ||
					err != nil && tc.want != "in between" && strings.Contains(err.Error(), "in between") {
					t.Errorf("got %v, want %q", err, tc.want)
				}
			}
		})
	}
}

func port(host string) string { return host[strings.LastIndexByte(host, ':')+1:] }

func TestNoAlgorithmInCommon(t *testing.T) {
	t.Parallel()
	err := networkCause(&ssh.AlgorithmNegotiationError{
		What: "host key", RequestedAlgorithms: []string{"ssh-dss", "\x1b[31m"}, SupportedAlgorithms: []string{ssh.KeyAlgoED25519},
	})
	const want = "no algorithm for the host key in common with Lockstep: it has ssh-dss; Lockstep has ssh-ed25519"
	if !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}
