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
	handshakeTimeout = 20 * time.Second // from the connection to git-upload-pack's start
	exitTimeout      = 5 * time.Second  // from the end of its output to its exit status
	maxStderr        = 4 << 10          // bytes kept
)

// sshSession asks a repository over SSH, a connection for each answer but the first two: those to the list
// of refs and to the request for objects come over one. It reads no user's configuration but known_hosts,
// and asks no agent. go-git's own client for SSH does both, and knows neither contexts nor our limits.
type sshSession struct {
	net     *Network
	foreign bool
	url     *url.URL
	auth    Auth
	wire    *monitor

	listed *uploadPack // has listed its refs and waits for a request, or nil
}

// AdvertisedReferencesContext lists the refs, and keeps the connection.
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
			command.explain(s.wire, true)
		}
		_ = command.Close()
		return nil, err
	}
	s.listed = command
	return refs, nil
}

// UploadPack asks for objects. The answer holds the connection, which ends with it.
func (s *sshSession) UploadPack(ctx context.Context, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	if s.listed == nil { // the one of the list has been used up
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
		_ = s.wire.remember(err)
	} else {
		err = response.Decode(struct {
			io.Reader
			io.Closer
		}{body, body})
	}
	if err != nil {
		command.explain(s.wire, false)
		_ = body.Close()
		return nil, err
	}
	return response, nil
}

// Close ends the connection that waits for a request.
func (s *sshSession) Close() error {
	if s.listed != nil {
		_ = s.listed.Close()
		s.listed = nil
	}
	return nil
}

// start connects, proves host and credential, and starts git-upload-pack.
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
		return nil, s.wire.remember(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		_ = conn.Close()
		return nil, s.wire.remember(err)
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
		if strings.Contains(err.Error(), "unable to authenticate") { // the package has no other sign of it
			err = &refusal{class: events.ClassAuth}
		}
		return nil, s.wire.remember(err)
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
			"the credential's sshKey cannot be read; want a private key, PEM or OpenSSH, and its sshKeyPassphrase if it has one")
	}
	return signer, nil
}

// userOf returns the user to log in as, which is git to almost every server.
func userOf(u *url.URL) string {
	if u.User == nil {
		return "git"
	}
	return u.User.Username()
}

// repositoryPath returns the path as git-upload-pack wants it: absolute, or below a user's home.
func repositoryPath(u *url.URL) string {
	if strings.HasPrefix(u.Path, "/~") {
		return u.Path[1:]
	}
	return u.Path
}

// quoted quotes a word for a shell as Git does, whose own restricted shell reads nothing else.
func quoted(word string) string {
	return "'" + strings.NewReplacer(`'`, `'\''`, `!`, `'\!'`).Replace(word) + "'"
}

// uploadPack is a git-upload-pack that runs on the other side of an SSH connection.
type uploadPack struct {
	conn    net.Conn
	client  *ssh.Client
	session *ssh.Session
	stdin   io.WriteCloser
	stdout  io.Reader
	ended   bool // so has stdout
	stderr  firstBytes
	wait    func() error // for its exit, as often as one likes; nil before it has begun
	once    sync.Once
}

// startUploadPack owns conn once it has succeeded.
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
	if err := c.session.Start("git-upload-pack " + quoted(path)); err != nil {
		return err
	}
	c.wait = sync.OnceValue(c.session.Wait)
	return nil
}

// send asks for objects, all in one request as over HTTP: the remote has no questions to ask back.
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

// Read reads what git-upload-pack writes. The package has the output of a broken connection end as any.
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

// exit waits for the exit of a git-upload-pack whose output has ended.
func (c *uploadPack) exit() error {
	_ = c.stdin.Close()
	limit := time.AfterFunc(exitTimeout, func() { _ = c.conn.Close() })
	defer limit.Stop()
	return c.wait()
}

// Close ends the connection and all that runs for it. It returns nil.
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

// explain tells the wire why the output ended early, if it did: by words on standard error, or by an exit
// status.
func (c *uploadPack) explain(w *monitor, listing bool) {
	if !c.ended || w.firstFault() != nil || w.errLine() != "" {
		return
	}
	if exit, ok := errors.AsType[*ssh.ExitError](c.exit()); ok {
		said := refusalOf(c.stderr.String(), listing)
		said.status = exit.ExitStatus()
		_ = w.remember(said)
	}
}

// commandOutput is what git-upload-pack writes, bounded as an answer over HTTP is.
type commandOutput struct {
	*boundedBody
	detach func() bool
}

// output bounds what comes next, a list of refs or else a pack, until ctx is done, which ends the
// connection. Closing it closes closer, or leaves the connection as it is when there is none.
func (c *uploadPack) output(ctx context.Context, w *monitor, listing bool, closer io.Closer) *commandOutput {
	ctx, cancel := context.WithCancelCause(ctx)
	detach := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	if closer == nil {
		closer = io.NopCloser(nil)
	}
	body := w.bound(ctx, cancel, struct {
		io.Reader
		io.Closer
	}{c, closer}, listing)
	return &commandOutput{body, detach}
}

// Close implements [io.Closer].
func (o *commandOutput) Close() error {
	o.detach()
	return o.boundedBody.Close()
}

// firstBytes keeps the first bytes written to it, and lets the rest go.
type firstBytes struct {
	mu   sync.Mutex
	kept []byte
}

func (b *firstBytes) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = append(b.kept, p[:min(len(p), maxStderr-len(b.kept))]...)
	return len(p), nil
}

func (b *firstBytes) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.kept)
}
