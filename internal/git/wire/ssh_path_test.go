package wire

import (
	"cmp"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// remotesOverSSH are remotes as people write them, and the command that Git sends to the host.
func remotesOverSSH(login, absolute string) map[string]string {
	return map[string]string{
		login + "@git.test:acme/widgets.git":                   "git-upload-pack 'acme/widgets.git'",
		login + "@git.test:acme/widgets":                       "git-upload-pack 'acme/widgets'",
		login + "@git.test:~/acme/widgets.git":                 "git-upload-pack '~/acme/widgets.git'",
		login + "@git.test:" + absolute:                        "git-upload-pack '" + absolute + "'",
		"ssh://" + login + "@git.test" + absolute:              "git-upload-pack '" + absolute + "'",
		"ssh://" + login + "@git.test:22" + absolute:           "git-upload-pack '" + absolute + "'",
		"ssh://" + login + "@git.test/~/acme/widgets.git":      "git-upload-pack '~/acme/widgets.git'",
		"ssh://" + login + "@git.test/acme/widgets.git":        "git-upload-pack '/acme/widgets.git'",
		login + "@git.test:acme/it's new.git":                  `git-upload-pack 'acme/it'\''s new.git'`,
		"ssh://" + login + "@git.test/~" + login + "/none.git": "git-upload-pack '~" + login + "/none.git'",
	}
}

// listBy lists the refs of a remote as [events.RemoteURL] spells it, through a proxy that connects any name to address.
func listBy(t *testing.T, address, remote string, auth Auth) (head string, err error) {
	t.Helper()
	proxy := httptest.NewServer(connectTo(address))
	defer proxy.Close()
	n := testenv.Must(NewNetwork(Config{Proxy: proxy.URL}))(t)
	defer n.Close()
	session, err := n.DialAndList(t.Context(), events.RemoteURL(remote), auth, false, Limits{Timeout: time.Minute}, "")
	if err != nil {
		return "", err
	}
	defer session.Close()
	tip := testenv.Must(session.Resolve(""))(t)
	return tip.Commit.String(), nil
}

// TestPathsOfSSHRemotes sends to the host what Git sends, and fetches from a forge, to which a path with and without a
// slash is the same.
func TestPathsOfSSHRemotes(t *testing.T) {
	server, head := startGit(t)
	host := testenv.Must(server.StartSSH())(t)
	t.Cleanup(host.Close)
	key := strings.SplitN(strings.TrimSpace(host.KnownHosts()), " ", 2)[1]
	auth := Auth{SSHKey: host.ClientKey, KnownHosts: "git.test " + key}
	for remote, want := range remotesOverSSH("git", "/acme/widgets.git") {
		got, err := listBy(t, host.Addr(), remote, auth)
		if commands := host.Commands(); commands[len(commands)-1] != want {
			t.Errorf("%s: sent %s, want %s", remote, commands[len(commands)-1], want)
		}
		if isSame := strings.HasSuffix(want, " 'acme/widgets.git'") || strings.HasSuffix(want, " '/acme/widgets.git'"); isSame && got != head {
			t.Errorf("%s: got %q, %v", remote, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "git.test:") && !strings.Contains(err.Error(), "git.test: ") {
			t.Errorf("%s: the error names another host: %v", remote, err)
		}
	}
}

// TestPathsOfSSHRemotesAsGit compares with Git at OpenSSH's server, where repositories are in the home of the login.
func TestPathsOfSSHRemotesAsGit(t *testing.T) {
	sshd := startSSHD(t)
	heads := map[string]bool{}
	for remote := range remotesOverSSH(sshd.login, sshd.home+"/acme/widgets.git") {
		if strings.Contains(remote, ":22/") || strings.HasSuffix(remote, ":acme/widgets") || strings.Contains(remote, "none") {
			continue // as others, and each login takes a second of processor time
		}
		cmd := exec.Command("git", "ls-remote", remote, "HEAD")
		cmd.Env = append(os.Environ(), "GIT_SSH_COMMAND="+sshd.command)
		out, gitErr := cmd.Output()
		want, _, _ := strings.Cut(string(out), "\t")
		got, err := listBy(t, sshd.address, remote, sshd.auth)
		if got != want || (err == nil) != (gitErr == nil) {
			t.Errorf("%s: got %q, %v; Git has %q, %v", remote, got, err, want, gitErr)
		}
		heads[got] = true
	}
	if len(heads) != 3 { // two repositories, and none
		t.Errorf("got %v", heads)
	}
}

type sshServer struct {
	address, login, home string
	command              string // ssh with its options
	auth                 Auth
}

// startSSHD starts OpenSSH's server for the present user with another home folder, which has the repositories
// acme/widgets.git and "acme/it's new.git". It skips the test if there is no such server.
func startSSHD(t *testing.T) sshServer {
	t.Helper()
	program, err := exec.LookPath("sshd")
	if program = cmp.Or(program, "/usr/sbin/sshd"); err != nil {
		if _, err := os.Stat(program); err != nil {
			t.Skip("no sshd: apt-get install openssh-server")
		}
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at("host"))
	run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at("client"))
	git := testenv.Must(gitserver.Start(t.TempDir()))(t)
	t.Cleanup(git.Close)
	for _, repo := range []string{"widgets", "it's new"} {
		testenv.Must(git.Create(t.Context(), "acme/"+strings.ReplaceAll(repo, "'s ", "-"), map[string]string{"a": repo}))(t)
		run("git", "clone", "-q", "--bare", git.Dir("acme/"+strings.ReplaceAll(repo, "'s ", "-")), at("home/acme/"+repo+".git"))
	}
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := listener.Addr().String()
	testenv.Must(0, listener.Close())(t)
	_, port, _ := net.SplitHostPort(address)
	login := testenv.Must(user.Current())(t).Username
	testenv.Must(0, os.WriteFile(at("config"), []byte(strings.Join([]string{
		"ListenAddress " + address, "HostKey " + at("host"), "AuthorizedKeysFile " + at("client.pub"), "PidFile none",
		"StrictModes no", "UsePAM no", "PermitRootLogin yes", "PasswordAuthentication no", "AcceptEnv GIT_PROTOCOL",
		`ForceCommand cd '` + at("home") + `' && HOME=$PWD exec git-shell -c "$SSH_ORIGINAL_COMMAND"`,
	}, "\n")), 0o600))(t)
	if os.Getuid() == 0 {
		testenv.Must(0, os.MkdirAll("/run/sshd", 0o755))(t) // sshd separates its privileges
	}
	cmd := exec.Command(program, "-D", "-e", "-f", at("config"))
	log := testenv.Must(os.Create(at("log")))(t)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	testenv.Must(0, cmd.Start())(t)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, _ := os.ReadFile(at("log")); t.Failed() {
			t.Logf("%s", text)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	public := testenv.Must(os.ReadFile(at("host.pub")))(t)
	key, _, _, _, err := ssh.ParseAuthorizedKey(public)
	testenv.Must(0, err)(t)
	known := "git.test " + string(ssh.MarshalAuthorizedKey(key))
	testenv.Must(0, os.WriteFile(at("known_hosts"), []byte(known), 0o600))(t)
	return sshServer{
		address: address, login: login, home: at("home"),
		command: fmt.Sprintf("ssh -F none -i %s -o UserKnownHostsFile=%s -o IdentitiesOnly=yes -o HostName=127.0.0.1 -o HostKeyAlias=git.test "+
			"-o Port=%s", at("client"), at("known_hosts"), port),
		auth: Auth{SSHKey: string(testenv.Must(os.ReadFile(at("client")))(t)), KnownHosts: known},
	}
}
