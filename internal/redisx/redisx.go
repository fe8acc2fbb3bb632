// Package redisx connects to Redis. It parses one URL format for all topologies, configures clients that never resend a
// command automatically, and provides an embedded server.
package redisx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"lockstep/events/stream"
	"lockstep/internal/disk"
)

const (
	dialTimeout  = 4 * time.Second // of the only dial: a lost SYN is sent again after 1 s and after 3 s
	readTimeout  = 3 * time.Second
	writeTimeout = 3 * time.Second
	poolTimeout  = 10 * time.Second
	poolSize     = 32
)

// go-redis logs errors that it also returns. Its logger is a global variable that its clients read without
// synchronization, so it is replaced before there is any.
func init() { redis.SetLogger(&logging.VoidLogger{}) }

// Server is the address of a Redis deployment. Only [Parse] creates one.
type Server struct {
	address string // without credentials
	open    func() redis.UniversalClient
}

// Parse parses a Redis URL:
//
//	redis://[user[:password]@]host[:6379][/db]            standalone; rediss:// for TLS
//	unix:///path/to/redis.sock[?db=n]                      standalone on a socket
//	redis+sentinel://host[:26379]?master_name=m[&addr=…]   Sentinel; rediss+sentinel:// for TLS
//	redis+cluster://host[:6379][?addr=…]                   Cluster; rediss+cluster:// for TLS
//
// The user and password of a Sentinel URL are those of the Sentinels; the parameter sentinel_password_file names a file
// with the password, which is read at each new connection to one. The parameters username and password are for the
// master.
//
// A bare host:port is a standalone server. go-redis' query parameters are accepted. The password, which is asked for at
// each new connection, takes precedence over the URL's; nil uses that. The error never contains the URL, which may contain a
// password.
func Parse(raw string, password func() (string, error)) (Server, error) {
	if !strings.Contains(raw, "://") {
		raw = "redis://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil {
		return Server{}, errors.New("redis: the URL does not parse; want redis://host:port")
	}
	scheme, topology, _ := strings.Cut(u.Scheme, "+")
	if scheme != "redis" && scheme != "rediss" && scheme != "unix" {
		return Server{}, fmt.Errorf("redis: unknown scheme %q; want redis://, rediss://, unix://, redis+sentinel:// "+
			"or redis+cluster://", u.Scheme)
	}
	u.Scheme = scheme
	server := Server{address: addressOf(u)}
	switch topology {
	case "":
		server.open, err = standalone(u.String(), password)
	case "sentinel":
		server.open, err = sentinel(u, password)
	case "cluster":
		server.open, err = cluster(u.String(), password)
	default:
		err = fmt.Errorf("unknown topology %q; want sentinel or cluster", topology)
	}
	if err != nil {
		// go-redis' errors have the same prefix
		return Server{}, fmt.Errorf("redis: %s", strings.TrimPrefix(err.Error(), "redis: "))
	}
	return server, nil
}

// addressOf returns the URL without credentials and parameters, for logs and errors.
func addressOf(u *url.URL) string {
	s := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return s.String()
}

// String returns the address without credentials.
func (s Server) String() string { return s.address }

// Open returns a new client, which the caller must close. Use separate clients for blocking reads, pub/sub
// and commands, because a blocking read occupies its connection. The client never retries: if a reply is
// lost, the command may have been executed, and only the caller knows whether it may run twice. It dials
// once, so that a refused connection is an error at once.
func (s Server) Open() redis.UniversalClient { return s.open() }

// With returns a Server with the same address whose clients use the hook.
func (s Server) With(hook redis.Hook) Server {
	return Server{address: s.address, open: func() redis.UniversalClient {
		client := s.open()
		client.AddHook(hook)
		return client
	}}
}

func standalone(rawURL string, password func() (string, error)) (func() redis.UniversalClient, error) {
	opt, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, withoutURL(err)
	}
	opt.CredentialsProviderContext = login(opt.Username, password)
	opt.MaxRetries, opt.ContextTimeoutEnabled, opt.DisableIdentity = -1, true, true
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout = dialTimeout, readTimeout, writeTimeout
	opt.PoolSize, opt.PoolTimeout = poolSize, poolTimeout
	opt.DialerRetries = 1
	opt.MaintNotificationsConfig = noNotifications()
	return func() redis.UniversalClient { o := *opt; return redis.NewClient(&o) }, nil
}

func sentinel(u *url.URL, password func() (string, error)) (func() redis.UniversalClient, error) {
	query := u.Query()
	file := query.Get(sentinelPassword)
	query.Del(sentinelPassword)
	u.RawQuery = query.Encode()
	opt, err := redis.ParseFailoverURL(u.String())
	if err != nil {
		return nil, withoutURL(err)
	}
	if opt.MasterName == "" {
		return nil, errors.New("master_name is missing from the sentinel URL")
	}
	if file != "" {
		if _, err := readPassword(file); err != nil {
			return nil, err
		}
		opt.OnConnect = loginToSentinel(cmp.Or(opt.SentinelUsername, "default"), file)
		opt.SentinelUsername, opt.SentinelPassword = "", ""
	}
	opt.CredentialsProviderContext = login(opt.Username, password)
	opt.MaxRetries, opt.ContextTimeoutEnabled, opt.DisableIdentity = -1, true, true
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout = dialTimeout, readTimeout, writeTimeout
	opt.PoolSize, opt.PoolTimeout = poolSize, poolTimeout
	opt.DialerRetries = 1
	return func() redis.UniversalClient { o := *opt; return redis.NewFailoverClient(&o) }, nil
}

const (
	sentinelPassword = "sentinel_password_file"
	masterAddress    = "FailoverClient" // what go-redis calls the address of the master
)

// loginToSentinel returns what go-redis calls for each new connection, to a Sentinel or to the master. It has no
// credentials provider for Sentinels.
func loginToSentinel(user, file string) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, conn *redis.Conn) error {
		if strings.Contains(conn.String(), masterAddress) {
			return nil
		}
		password, err := readPassword(file)
		if err != nil {
			return err
		}
		return conn.AuthACL(ctx, user, password).Err()
	}
}

func readPassword(file string) (string, error) {
	password, err := disk.ReadSecret(file)
	if err != nil {
		return "", fmt.Errorf("%s: %v", sentinelPassword, err) //nolint:errorlint // go-redis returns what an error wraps
	}
	return password, nil
}

func cluster(rawURL string, password func() (string, error)) (func() redis.UniversalClient, error) {
	opt, err := redis.ParseClusterURL(rawURL)
	if err != nil {
		return nil, withoutURL(err)
	}
	opt.CredentialsProviderContext = login(opt.Username, password)
	opt.MaxRetries, opt.ContextTimeoutEnabled, opt.DisableIdentity = -1, true, true
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout = dialTimeout, readTimeout, writeTimeout
	opt.PoolSize, opt.PoolTimeout = poolSize, poolTimeout
	opt.DialerRetries = 1
	opt.MaintNotificationsConfig = noNotifications()
	return func() redis.UniversalClient {
		o := *opt
		client := redis.NewClusterClient(&o)
		client.AddHook(sendOnce{})
		return client
	}, nil
}

// login returns what go-redis calls for each new connection; nil if there is no password but that of the URL.
func login(user string, password func() (string, error)) func(context.Context) (string, string, error) {
	if password == nil {
		return nil
	}
	return func(context.Context) (string, string, error) {
		secret, err := password()
		return user, secret, err
	}
}

// noNotifications disables a handshake that Redis before version 8 rejects on every connection.
func noNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// withoutURL removes the URL, which may contain a password, from a parse error.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// Pause waits for d, such as before a command is repeated. It returns false if ctx ends first.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Unavailable reports whether Redis could not be reached or is not ready, rather than rejecting the command.
func Unavailable(err error) bool {
	if _, replied := errors.AsType[redis.Error](err); replied {
		return stream.CannotServe(err)
	}
	if e, ok := errors.AsType[net.Error](err); ok {
		_, bare := e.(syscall.Errno) // implements net.Error, but may be a file system's error, such as a full disk
		return !bare
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, redis.ErrPoolTimeout)
}

// sendOnce prevents a Cluster client from resending commands without a reply. The client does so up to MaxRedirects
// times, regardless of MaxRetries. MOVED and ASK are still followed.
type sendOnce struct{}

func (sendOnce) DialHook(next redis.DialHook) redis.DialHook { return next }

func (sendOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, once{cmd}) }
}

func (sendOnce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		wrapped := make([]redis.Cmder, len(cmds))
		for i, cmd := range cmds {
			wrapped[i] = once{cmd}
		}
		return next(ctx, wrapped)
	}
}

type once struct{ redis.Cmder }

func (once) NoRetry() bool { return true }
