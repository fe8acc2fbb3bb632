package wire

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// sshWorld is an SSH server, and its line of known_hosts.
type sshWorld struct {
	*gitserver.SSHServer
	line, host, kind, blob string
}

func newSSHWorld(t *testing.T) sshWorld {
	t.Helper()
	git, _ := startGit(t)
	server := testenv.Must(git.StartSSH())(t)
	t.Cleanup(server.Close)
	line := strings.TrimSpace(server.KnownHosts())
	fields := strings.Fields(line)
	return sshWorld{server, line, fields[0], fields[1], fields[2]}
}

// connect lists the refs of a repository, with these known_hosts in a file and then as those of the credential.
func (w sshWorld) connect(t *testing.T, knownHosts string) (errs [2]error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "known_hosts")
	testenv.Must(0, os.WriteFile(file, []byte(knownHosts), 0o600))(t)
	for i, inline := range []string{"", knownHosts} {
		n := testenv.Must(NewNetwork(Config{KnownHosts: file}))(t)
		t.Cleanup(n.Close)
		var session *Session
		session, errs[i] = n.DialAndList(t.Context(), w.URL(widgets), Auth{SSHKey: w.ClientKey, KnownHosts: inline}, false, Limits{Timeout: time.Minute}, "refs/heads/")
		if errs[i] == nil {
			session.Close()
		}
	}
	return errs
}

// TestKnownHostsSkipsInvalidLines connects although another line of known_hosts cannot be used.
func TestKnownHostsSkipsInvalidLines(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	for name, before := range map[string]string{
		"unknown key type":       "other.test ssh-future@example.org " + unknownKey("ssh-future@example.org"),
		"bad base64":             "other.test ssh-ed25519 AAAA*C3NzaC1lZDI1NTE5",
		"truncated key":          "other.test ssh-ed25519 " + w.blob[:len(w.blob)/2],
		"other type in the key":  "other.test ssh-rsa " + w.blob,
		"no key":                 "other.test ssh-ed25519",
		"only a host":            "other.test",
		"unknown marker":         "@trusted other.test " + w.kind + " " + w.blob,
		"two markers":            "@cert-authority @trusted other.test " + w.kind + " " + w.blob,
		"marker only":            "@cert-authority",
		"old key of SSH 1":       "other.test 1024 35 1234567890",
		"empty negation":         "other.test,! " + w.kind + " " + w.blob,
		"open bracket":           "[other.test " + w.kind + " " + w.blob,
		"bad hash of a host":     "|1|x|y " + w.kind + " " + w.blob,
		"unknown hash of a host": "|2|YWJj|YWJj " + w.kind + " " + w.blob,
		"long line":              "other.test " + strings.Repeat("x", 100<<10),
		"binary":                 "\x00\x01\xff\xfe",
		"not ASCII":              "größe.test schlüssel",
		"conflict of a merge":    "<<<<<<< HEAD\n=======",
		"HTML":                   "<!DOCTYPE html>\n<title>404</title>",
		"revoked unknown type":   "@revoked * ssh-future@example.org " + unknownKey("ssh-future@example.org"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range w.connect(t, before+"\n"+w.line+"\n") {
				if err != nil {
					t.Errorf("got %v, want the line to be skipped", err)
				}
			}
		})
	}
}

// TestKnownHostsOfOtherEditors reads known_hosts as editors and tools of other systems write it.
func TestKnownHostsOfOtherEditors(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	for name, content := range map[string]string{
		"CR":                    "# ours\r\r" + w.line + "\r",
		"CRLF":                  "# ours\r\n\r\n" + w.line + "\r\n",
		"mark of byte order":    "\ufeff" + w.line + "\n",
		"mark, then a comment":  "\ufeff# ours\r\n" + w.line,
		"tabs and a comment":    "\t" + strings.ReplaceAll(w.line, " ", "\t") + "\tgröße",
		"negated other pattern": "!other.test," + w.line,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range w.connect(t, content) {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestKnownHostsNeverTrustMore refuses the host's key although known_hosts also has its valid line, or because its only line is invalid.
func TestKnownHostsNeverTrustMore(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	for name, tc := range map[string]struct {
		content string
		class   events.Class
	}{
		"revoked":                       {w.line + "\n@revoked * " + w.kind + " " + w.blob, events.ClassAuth},
		"revoked beside invalid lines":  {"other.test\n" + w.line + "\n@revoked other.test " + w.kind + " " + w.blob + "\nother.test x", events.ClassAuth},
		"revoked after a mark":          {"\ufeff@revoked * " + w.kind + " " + w.blob + "\n" + w.line, events.ClassAuth},
		"revoked after a mark inside":   {w.line + "\n\ufeff@revoked * " + w.kind + " " + w.blob, events.ClassAuth},
		"revoked after a comment, CR":   {w.line + "\n# ours\r@revoked * " + w.kind + " " + w.blob, events.ClassAuth},
		"revoked in a file with CR":     {w.line + "\r@revoked * " + w.kind + " " + w.blob + "\r# end\r", events.ClassAuth},
		"revoked after another key":     {w.line + "\n@revoked other.test * " + w.kind + " " + otherKey(t) + " " + w.kind + " " + w.blob, events.ClassAuth},
		"revoked after an unknown key":  {w.line + "\n@revoked * ssh-future@example.org " + unknownKey("ssh-future@example.org") + " " + w.blob, events.ClassAuth},
		"revoked with another type":     {w.line + "\n@revoked * ssh-rsa " + w.blob, events.ClassAuth},
		"revoked with another case":     {w.line + "\n@Revoked * " + w.kind + " " + w.blob, events.ClassAuth},
		"revoked without a host":        {w.line + "\n@revoked " + w.kind + " " + w.blob, events.ClassAuth},
		"revoked, two markers":          {w.line + "\n@cert-authority @revoked * " + w.kind + " " + w.blob, events.ClassAuth},
		"revoked, key cut off":          {w.line + "\n@revoked * " + w.kind + " " + w.blob[:len(w.blob)/2/4*4], events.ClassConfig},
		"revoked, bad base64":           {w.line + "\n@revoked * " + w.kind + " *" + w.blob, events.ClassConfig},
		"revoked, no key":               {w.line + "\n@revoked *", events.ClassConfig},
		"only line is invalid":          {w.host + " ssh-rsa " + w.blob, events.ClassConfig},
		"only line has a negation":      {"!" + w.host + "," + w.line, events.ClassConfig},
		"authority's key as the host's": {"@cert-authority " + w.line, events.ClassConfig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range w.connect(t, tc.content+"\n") {
				testenv.MustFail(t, err, tc.class, events.Permanent)
			}
		})
	}
}

// TestKnownHostsWarnsOnce logs the numbers of skipped lines once for each content of the file, and no part of the lines.
func TestKnownHostsWarnsOnce(t *testing.T) {
	var log bytes.Buffer
	file := filepath.Join(t.TempDir(), "known_hosts")
	n := testenv.Must(NewNetwork(Config{Log: slog.New(slog.NewTextHandler(&log, nil))}))(t)
	defer n.Close()
	n.knownHosts = []string{file}
	for _, content := range []string{"# x\n" + secret + "\n\nother.test " + secret, secret, "# fine\n"} {
		testenv.Must(0, os.WriteFile(file, []byte(content), 0o600))(t)
		for range 3 {
			testenv.Must(n.hostKeys(""))(t)
		}
	}
	testenv.Must(n.hostKeys(secret))(t)
	for _, want := range []string{`lines="[2 4]"`, "file=" + file + " lines=[1]", `file="the credential's knownHosts" lines=[1]`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in\n%s", want, &log)
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines != 3 || strings.Contains(log.String(), secret) {
		t.Errorf("%d records, want 3 without the lines' text:\n%s", lines, &log)
	}
}

// unknownKey returns a key of an unknown type in base64.
func unknownKey(kind string) string {
	return base64.StdEncoding.EncodeToString(ssh.Marshal(struct{ Kind, Key string }{kind, "key"}))
}
