package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/egress"
)

const (
	handshakeTimeout = 20 * time.Second // from connecting to the start of git-upload-pack
	exitTimeout      = 5 * time.Second  // from the end of its output to its exit status
	maxStderr        = 4 << 10          // bytes
)

// sshSession talks to a repository over SSH. The list of refs and the first fetch share a connection; each later
// fetch makes a new one. Unlike go-git's client it supports contexts and limits, and uses neither an agent nor
// ssh_config.
type sshSession struct {
	net     *Network
	foreign bool
	url     *url.URL
	auth    Auth
	wire    *monitor

	listed *uploadPack // waiting for a request after listing its refs; may be nil
}

// AdvertisedReferencesContext lists the refs and keeps the connection open.
func (s *sshSession) AdvertisedReferencesContext(ctx context.Context) (*packp.AdvRefs, error) {
	command, err := s.start(ctx)
	if err != nil {
		return nil, err
	}
	body := command.output(ctx, s.wire, true, nil)
	defer body.Close()
	refs := packp.NewAdvRefs()
	err = refs.Decode(body)
	if err == nil && refs.IsEmpty() || errors.Is(err, packp.ErrEmptyAdvRefs) {
		err = transport.ErrEmptyRemoteRepository
	}
	if err != nil {
		if !errors.Is(err, transport.ErrEmptyRemoteRepository) {
			command.recordExit(s.wire, true)
		}
		_ = command.Close()
		return nil, err
	}
	s.listed = command
	return refs, nil
}

// UploadPack requests objects. Closing the response closes the connection.
func (s *sshSession) UploadPack(ctx context.Context, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	if s.listed == nil { // a connection serves one request
		if _, err := s.AdvertisedReferencesContext(ctx); err != nil {
			return nil, err
		}
	}
	command := s.listed
	s.listed = nil
	body := command.output(ctx, s.wire, false, command)
	response := packp.NewUploadPackResponse(req)
	err := command.send(req)
	if err != nil {
		_ = s.wire.record(err)
	} else {
		err = response.Decode(struct {
			io.Reader
			io.Closer
		}{body, body})
	}
	if err != nil {
		command.recordExit(s.wire, false)
		_ = body.Close()
		return nil, err
	}
	return response, nil
}

// Close closes the connection if it is waiting for a request.
func (s *sshSession) Close() error {
	if s.listed != nil {
		_ = s.listed.Close()
		s.listed = nil
	}
	return nil
}

// start connects, authenticates the host and the user, and starts git-upload-pack.
func (s *sshSession) start(ctx context.Context) (*uploadPack, error) {
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
		return nil, s.wire.record(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		_ = conn.Close()
		return nil, s.wire.record(err)
	}
	command, err := startUploadPack(conn, address, repositoryPath(s.url), &ssh.ClientConfig{
		User:              userOf(s.url),
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback:   keys.verify,
		HostKeyAlgorithms: keys.algorithms(address),
	})
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		if command != nil {
			_ = command.Close()
		}
		_ = conn.Close()
		if strings.Contains(err.Error(), "unable to authenticate") { // package ssh has no error type for it
			err = &refusal{class: events.ClassAuth}
		}
		return nil, s.wire.record(err)
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
		return nil, events.Errorf(events.Permanent, events.ClassConfig, "the credential's sshKey is encrypted; add its sshKeyPassphrase")
	}
	if err != nil {
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"the credential's sshKey cannot be read; want a private key in PEM or OpenSSH format, and its sshKeyPassphrase if it is encrypted")
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

// repositoryPath returns the argument of git-upload-pack: an absolute path, or one relative to a home folder (~).
func repositoryPath(u *url.URL) string {
	if strings.HasPrefix(u.Path, "/~") {
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
	if err := c.session.Start("git-upload-pack " + shellQuote(path)); err != nil {
		return err
	}
	c.wait = sync.OnceValue(c.session.Wait)
	return nil
}

// send sends a complete request, without negotiation, as over HTTP.
func (c *uploadPack) send(req *packp.UploadPackRequest) error {
	var request bytes.Buffer
	if err := req.UploadRequest.Encode(&request); err != nil {
		return err
	}
	if err := req.UploadHaves.Encode(&request, false); err != nil {
		return err
	}
	if err := pktline.NewEncoder(&request).EncodeString("done\n"); err != nil {
		return err
	}
	_, err := c.stdin.Write(request.Bytes())
	return err
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
	if !c.ended || w.firstError() != nil || w.errLine() != "" {
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

// output returns the next response, either a list of refs or a pack. The connection is closed when ctx is done, or if the
// list does not begin in time.
// Closing the response closes closer, if any, and otherwise leaves the connection open.
func (c *uploadPack) output(ctx context.Context, w *monitor, listing bool, closer io.Closer) *commandOutput {
	ctx, cancel := context.WithCancelCause(ctx)
	detach := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	if closer == nil {
		closer = io.NopCloser(nil)
	}
	body := w.limit(ctx, cancel, struct {
		io.Reader
		io.Closer
	}{c, closer}, listing)
	if listing {
		body.silent = time.AfterFunc(refsTimeout, func() { cancel(errNoAnswer) })
	}
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
