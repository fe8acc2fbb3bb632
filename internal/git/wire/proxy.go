package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/proxy"

	"lockstep/internal/egress"
)

func checkProxyAnswer(_ context.Context, _ *url.URL, _ *http.Request, res *http.Response) error {
	if res.StatusCode != http.StatusOK {
		return proxyFault(res.StatusCode)
	}
	return nil
}

// dialSSH connects to an SSH server, through Config.Proxy if it is set.
func (n *Network) dialSSH(ctx context.Context, p egress.Policy, address string) (net.Conn, error) {
	if n.proxy == nil {
		return p.Dial(ctx, "tcp", address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if err := p.CheckName(host, port); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	switch n.proxy.Scheme {
	case "socks5", "socks5h":
		return dialSOCKS(ctx, dialer, n.proxy, address)
	}
	return n.dialCONNECT(ctx, dialer, address)
}

func dialSOCKS(ctx context.Context, dialer *net.Dialer, via *url.URL, address string) (net.Conn, error) {
	var login *proxy.Auth
	if via.User != nil {
		password, _ := via.User.Password()
		login = &proxy.Auth{User: via.User.Username(), Password: password}
	}
	socks, err := proxy.SOCKS5("tcp", net.JoinHostPort(via.Hostname(), egress.PortOf(via)), login, dialer)
	if err != nil {
		return nil, err
	}
	withContext, ok := socks.(proxy.ContextDialer)
	if !ok {
		return nil, errors.New("socks5: the dialer does not support contexts")
	}
	return withContext.DialContext(ctx, "tcp", address)
}

func (n *Network) dialCONNECT(ctx context.Context, dialer *net.Dialer, address string) (_ net.Conn, err error) {
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(n.proxy.Hostname(), egress.PortOf(n.proxy)))
	if err != nil {
		return nil, err
	}
	raw := conn
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			_ = raw.Close()
		}
	}()
	if n.proxy.Scheme == "https" {
		trusted, err := n.trust.TLS()
		if err != nil {
			return nil, err
		}
		cfg := trusted.Clone()
		cfg.ServerName = n.proxy.Hostname()
		secure := tls.Client(conn, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secure
	}
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if user := n.proxy.User; user != nil {
		password, _ := user.Password()
		login := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		req.Header.Set("Proxy-Authorization", "Basic "+login)
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, req) //nolint:bodyclose // the tunnel follows, not a body
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, proxyFault(res.StatusCode)
	}
	return &readAhead{conn, reader}, nil
}

// readAhead is a connection with buffered input, since an SSH server sends first.
type readAhead struct {
	net.Conn
	reader *bufio.Reader
}

func (c *readAhead) Read(p []byte) (int, error) { return c.reader.Read(p) }
