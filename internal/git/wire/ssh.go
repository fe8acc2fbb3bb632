package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep/internal/egress"
	"lockstep/internal/git"
)

const (
	exitTimeout = 5 * time.Second // from the end of the output of git-upload-pack to its exit status
	maxStderr   = 4 << 10         // bytes
)

// sshCarrier sends requests over SSH. The lists of refs and the first fetch share a connection; each later
// fetch makes a new one. Unlike go-git's client it supports contexts and limits, and uses neither an agent
// nor ssh_config.
type sshCarrier struct {
	net     *Network
	foreign bool
	url     *url.URL
	auth    Auth
	wire    *monitor

	command *uploadPack // of the latest request; nil if there is no connection
	spent   bool        // command serves no other request
}

func (s *sshCarrier) advertise(ctx context.Context) (io.ReadCloser, error) {
	s.close()
	ctx, cancel := context.WithCancelCause(ctx)
	first := s.wire.timeouts.awaitFirst(cancel, true)
	command, err := s.start(ctx)
	if err != nil {
		first.Stop()
		cancel(nil)
		return nil, err
	}
	s.command, s.spent = command, false
	return command.output(ctx, cancel, first, s.wire, true, nil), nil
}

// post sends a request. Closing the response closes the connection unless it is a list of refs.
func (s *sshCarrier) post(ctx context.Context, request []byte, listing, _ bool) (io.ReadCloser, error) {
	if !s.isReady() {
		return nil, errGarbage // impossible: the caller has seen a valid response
	}
	var closer io.Closer
	if !listing {
		s.spent, closer = true, s.command
	}
	ctx, cancel := context.WithCancelCause(ctx)
	first := s.wire.timeouts.awaitFirst(cancel, listing)
	body := s.command.output(ctx, cancel, first, s.wire, listing, closer)
	// A write fails if the server has ended, or the connection is closed. The reason is in the response, or
	// in how it ends.
	_, _ = s.command.stdin.Write(request)
	return body, nil
}

func (s *sshCarrier) isReady() bool { return s.command != nil && !s.spent }

// canPost is false: each session has its own connection, which begins with an advertisement.
func (s *sshCarrier) canPost() bool { return false }
func (s *sshCarrier) moved() string { return "" }

func (s *sshCarrier) abort(err error, listing bool) {
	if _, explained := errors.AsType[errorLine](err); s.command != nil && !explained {
		s.command.recordExit(s.wire, listing)
	}
	s.close()
}

func (s *sshCarrier) close() {
	if s.command != nil {
		_ = s.command.Close()
		s.command = nil
	}
}

// start connects, authenticates the host and the user, and starts git-upload-pack.
func (s *sshCarrier) start(ctx context.Context) (*uploadPack, error) {
	signer, err := parseKey(s.auth)
	if err != nil {
		return nil, err
	}
	keys, err := s.net.hostKeys(s.auth.KnownHosts)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(egress.CanonicalHost(s.url.Hostname()), egress.PortOf(s.url))
	conn, err := s.net.dialSSH(ctx, egress.Policy{Hosts: s.net.hosts, Foreign: s.foreign, Timeout: dialTimeout}, address)
	if err != nil {
		return nil, s.wire.record(timeoutOr(ctx, err))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	command, err := startUploadPack(conn, address, repositoryPath(s.url), &ssh.ClientConfig{
		User:              userOf(s.url),
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback:   keys.verify,
		HostKeyAlgorithms: keys.algorithms(address),
	})
	if err != nil {
		_ = conn.Close()
		if strings.Contains(err.Error(), "unable to authenticate") { // package ssh has no error type for it
			err = &refusal{class: git.ClassAuth}
		}
		return nil, s.wire.record(timeoutOr(ctx, err))
	}
	return command, nil
}

func parseKey(auth Auth) (signer ssh.Signer, err error) {
	if auth.SSHKeyPassphrase != "" {
		signer, err = ssh.ParsePrivateKeyWithPassphrase([]byte(auth.SSHKey), []byte(auth.SSHKeyPassphrase))
	} else {
		signer, err = ssh.ParsePrivateKey([]byte(auth.SSHKey))
	}
	if _, ok := errors.AsType[*ssh.PassphraseMissingError](err); ok {
		return nil, git.Errorf(git.Permanent, git.ClassConfig,
			"the credential's sshKey is encrypted; add its sshKeyPassphrase")
	}
	if err != nil {
		return nil, git.Errorf(git.Permanent, git.ClassConfig,
			"the credential's sshKey cannot be read; want a private key in PEM or OpenSSH format, "+
				"and its sshKeyPassphrase if it is encrypted")
	}
	return signer, nil
}

// userOf returns the user to log in as; defaults to git.
func userOf(u *url.URL) string {
	if u.User == nil {
		return "git"
	}
	return u.User.Username()
}

// repositoryPath returns the argument of git-upload-pack: an absolute path, or one relative to a home folder (~) or, with
// an empty port, to that of the user.
func repositoryPath(u *url.URL) string {
	if strings.HasPrefix(u.Path, "/~") || strings.HasSuffix(u.Host, ":") {
		return u.Path[1:]
	}
	return u.Path
}

// shellQuote quotes a word for a shell as Git does, the only form that git-shell accepts.
func shellQuote(word string) string {
	return "'" + strings.NewReplacer(`'`, `'\''`, `!`, `'\!'`).Replace(word) + "'"
}

// uploadPack is a git-upload-pack process on an SSH server.
type uploadPack struct {
	conn    net.Conn
	client  *ssh.Client
	session *ssh.Session
	stdin   io.WriteCloser
	stdout  io.Reader
	ended   bool // stdout has ended
	stderr  prefixBuffer
	wait    func() error // returns the exit status, any number of times; nil before the start
	once    sync.Once
}

// startUploadPack takes ownership of conn if it succeeds.
func startUploadPack(conn net.Conn, address, path string, cfg *ssh.ClientConfig) (*uploadPack, error) {
	secured, channels, requests, err := ssh.NewClientConn(conn, address, cfg)
	if err != nil {
		return nil, err
	}
	c := &uploadPack{conn: conn, client: ssh.NewClient(secured, channels, requests)}
	if err := c.start(path); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func (c *uploadPack) start(path string) (err error) {
	if c.session, err = c.client.NewSession(); err != nil {
		return err
	}
	c.session.Stderr = &c.stderr
	if c.stdin, err = c.session.StdinPipe(); err != nil {
		return err
	}
	if c.stdout, err = c.session.StdoutPipe(); err != nil {
		return err
	}
	// A server need not accept the variable; the version is in its answer.
	if _, err := c.session.SendRequest("env", false,
		ssh.Marshal(struct{ Name, Value string }{"GIT_PROTOCOL", "version=2"})); err != nil {
		return err
	}
	if err := c.session.Start("git-upload-pack " + shellQuote(path)); err != nil {
		return err
	}
	c.wait = sync.OnceValue(c.session.Wait)
	return nil
}

// Read reads the output of git-upload-pack. It fails if the connection broke, which package ssh reports as io.EOF.
func (c *uploadPack) Read(p []byte) (int, error) {
	n, err := c.stdout.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	c.ended = true
	if _, ok := errors.AsType[*ssh.ExitMissingError](c.exit()); ok {
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// exit waits for the exit status after the output has ended.
func (c *uploadPack) exit() error {
	_ = c.stdin.Close()
	limit := time.AfterFunc(exitTimeout, func() { _ = c.conn.Close() })
	defer limit.Stop()
	return c.wait()
}

// Close closes the connection and waits for its goroutines. It returns nil.
func (c *uploadPack) Close() error {
	c.once.Do(func() {
		_ = c.conn.Close()
		if c.wait != nil {
			_ = c.wait()
		}
		_ = c.client.Wait()
	})
	return nil
}

// recordExit records why the output ended early, if it did, from standard error or the exit status.
func (c *uploadPack) recordExit(w *monitor, listing bool) {
	if !c.ended || w.firstError() != nil {
		return
	}
	if exit, ok := errors.AsType[*ssh.ExitError](c.exit()); ok {
		refused := refusalOf(c.stderr.String(), listing)
		refused.status = exit.ExitStatus()
		_ = w.record(refused)
	}
}

// commandOutput is the output of git-upload-pack, with the limits of an HTTP response.
type commandOutput struct {
	*limitedBody
	detach func() bool
}

// output returns the next response, either a list of refs or a pack. The connection is closed when ctx is
// done, which cancel and the timer first do. Closing the response closes closer, if any, and otherwise leaves
// the connection open.
func (c *uploadPack) output(
	ctx context.Context, cancel context.CancelCauseFunc, first *time.Timer, w *monitor, listing bool, closer io.Closer,
) *commandOutput {
	detach := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	if closer == nil {
		closer = io.NopCloser(nil)
	}
	body := w.limit(ctx, cancel, first, struct {
		io.Reader
		io.Closer
	}{c, closer}, listing)
	return &commandOutput{body, detach}
}

func (o *commandOutput) Close() error {
	o.detach()
	return o.limitedBody.Close()
}

// prefixBuffer keeps the first maxStderr bytes written to it.
type prefixBuffer struct {
	mu   sync.Mutex
	kept []byte
}

func (b *prefixBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = append(b.kept, p[:min(len(p), maxStderr-len(b.kept))]...)
	return len(p), nil
}

func (b *prefixBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.kept)
}
