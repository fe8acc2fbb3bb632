package gitserver

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// SSHServer serves a [Server]'s repositories over SSH with Git's own upload-pack. It accepts any user name
// with its client key.
type SSHServer struct {
	// ClientKey is the accepted private key, in OpenSSH format.
	ClientKey string

	git      *Server
	listener net.Listener
	host     ssh.Signer
	client   ssh.PublicKey
	ctx      context.Context // context of all sessions
	stop     context.CancelFunc
	serving  sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
	commands []string
	answer   *SSHAnswer
}

// SSHAnswer is an answer that an [SSHServer] sends instead of running git-upload-pack.
type SSHAnswer struct {
	Stdout, Stderr string
	Status         uint32
	Hang           bool // write, then neither exit nor close
	Drop           bool // write, then close the connection
}

// StartSSH also serves the repositories over SSH. The caller must close the returned server.
func (s *Server) StartSSH() (*SSHServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start ssh server: %w", err)
	}
	server := &SSHServer{git: s, listener: listener, conns: map[net.Conn]bool{}}
	server.ctx, server.stop = context.WithCancel(context.Background())
	if server.host, _, err = newSSHKey(); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	var client ssh.Signer
	if client, server.ClientKey, err = newSSHKey(); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	server.client = client.PublicKey()
	server.serving.Go(server.accept)
	return server, nil
}

func newSSHKey() (ssh.Signer, string, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, "", err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, "", err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, "", err
	}
	return signer, string(pem.EncodeToMemory(block)), nil
}

// NewHostKey replaces the host key for new connections.
func (s *SSHServer) NewHostKey() error {
	key, _, err := newSSHKey()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.host = key
	return err
}

// Certify makes new connections present a certificate of the host key, which authority signs after edit.
func (s *SSHServer) Certify(authority ssh.Signer, edit func(*ssh.Certificate)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &ssh.Certificate{Key: s.host.PublicKey(), CertType: ssh.HostCert, ValidBefore: ssh.CertTimeInfinity}
	edit(c)
	err := c.SignCert(rand.Reader, authority)
	if err == nil {
		s.host, err = ssh.NewCertSigner(c, s.host)
	}
	return err
}

// Addr returns host:port.
func (s *SSHServer) Addr() string { return s.listener.Addr().String() }

// URL returns the clone URL of repo.
func (s *SSHServer) URL(repo string) string { return "ssh://git@" + s.Addr() + "/" + repo + ".git" }

// KnownHosts returns the server's known_hosts line.
func (s *SSHServer) KnownHosts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	host, port, _ := net.SplitHostPort(s.Addr())
	return fmt.Sprintf("[%s]:%s %s", host, port, ssh.MarshalAuthorizedKey(s.host.PublicKey()))
}

// Answer responds to all commands with answer; nil restores normal service.
func (s *SSHServer) Answer(answer *SSHAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// Commands returns the commands requested by clients.
func (s *SSHServer) Commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.commands...)
}

// Open returns the number of open connections.
func (s *SSHServer) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Close closes all connections and waits for their sessions to end.
func (s *SSHServer) Close() {
	s.stop()
	_ = s.listener.Close()
	s.mu.Lock()
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

func (s *SSHServer) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[conn] = true
		s.mu.Unlock()
		s.serving.Go(func() {
			s.serve(conn)
			_ = conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
		})
	}
}

func (s *SSHServer) serve(conn net.Conn) {
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(key.Marshal(), s.client.Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	s.mu.Lock()
	cfg.AddHostKey(s.host)
	s.mu.Unlock()
	_, channels, requests, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { ssh.DiscardRequests(requests) })
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		running.Go(func() { s.session(conn, channel, requests) })
	}
}

// session runs the command of a session.
func (s *SSHServer) session(conn net.Conn, channel ssh.Channel, requests <-chan *ssh.Request) {
	ctx, cancel := context.WithCancel(s.ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel() // stops the command when the client disconnects
	version := ""
	for request := range requests {
		var variable struct{ Name, Value string }
		if request.Type == "env" && ssh.Unmarshal(request.Payload, &variable) == nil &&
			variable.Name == "GIT_PROTOCOL" && !s.git.only0.Load() {
			version = variable.Value
		}
		var command struct{ Line string }
		known := request.Type == "exec" && ssh.Unmarshal(request.Payload, &command) == nil
		_ = request.Reply(known, nil)
		if known {
			running.Go(func() { s.run(ctx, conn, channel, command.Line, version) })
		}
	}
}

func (s *SSHServer) run(ctx context.Context, conn net.Conn, channel ssh.Channel, line, version string) {
	s.mu.Lock()
	s.commands = append(s.commands, line)
	answer := s.answer
	s.mu.Unlock()
	var status uint32
	if answer != nil {
		_, _ = io.WriteString(channel.Stderr(), answer.Stderr)
		_, _ = io.WriteString(channel, answer.Stdout)
		if answer.Drop {
			_ = conn.Close()
		}
		if answer.Hang || answer.Drop {
			<-ctx.Done()
			return
		}
		status = answer.Status
	} else {
		status = s.uploadPack(ctx, channel, line, version)
	}
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
	_ = channel.Close()
}

// uploadPack runs git upload-pack like a forge: it ignores the slash before a path.
func (s *SSHServer) uploadPack(ctx context.Context, channel ssh.Channel, line, version string) uint32 {
	path, ok := strings.CutPrefix(line, "git-upload-pack '")
	path, closed := strings.CutSuffix(strings.TrimPrefix(path, "/"), "'")
	if !ok || !closed || !filepath.IsLocal(path) || strings.ContainsAny(path, `'\`) {
		return 128
	}
	repo := strings.TrimSuffix(path, ".git")
	s.git.count(repo)
	defer s.git.end(repo, uploadPack)
	cmd := exec.CommandContext(ctx, "git", "upload-pack", s.git.Dir(repo))
	cmd.Env = append(isolatedEnv(), "GIT_PROTOCOL="+version)
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 1
	}
	go func() { // ends when the channel closes
		_, _ = io.Copy(stdin, channel)
		_ = stdin.Close()
	}()
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return uint32(max(exit.ExitCode(), 1))
	}
	if err != nil {
		return 1
	}
	return 0
}

// count counts an SSH session as a request for objects.
func (s *Server) count(repo string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state(repo)
	state.UploadPacks++
	state.Active++
	state.MaxActive = max(state.MaxActive, state.Active)
	s.maxRepos = max(s.maxRepos, s.activeRepos())
}
