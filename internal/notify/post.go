package notify

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"lockstep/internal/egress"
	"lockstep/internal/watch"
)

const (
	maxAnswer  = 64 << 10 // bytes of a response body to discard before closing
	maxHeaders = 64 << 10 // bytes of response headers
)

var errGone = errors.New("answered 410 Gone")

// newClient returns the client for all posts. It uses no proxy, because a proxy would resolve names by itself.
func newClient(cfg Config) (*http.Client, error) {
	hosts, err := egress.ParseHosts("notify-hosts", cfg.Hosts)
	if err != nil {
		return nil, err
	}
	policy := egress.Policy{Hosts: hosts, Foreign: true, Timeout: dialTimeout}
	return &http.Client{
		Timeout:       cfg.timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: cmp.Or(cfg.Trust, &egress.Trust{}).Transport(&http.Transport{
			Proxy:                  nil,
			DialContext:            policy.Dial,
			TLSHandshakeTimeout:    dialTimeout,
			MaxResponseHeaderBytes: maxHeaders,
			MaxIdleConns:           100,
			MaxIdleConnsPerHost:    cfg.perApp,
			IdleConnTimeout:        90 * time.Second,
			DisableCompression:     true,
			ForceAttemptHTTP2:      true,
			// Detects dead connections before the operating system does.
			HTTP2: &http.HTTP2Config{SendPingTimeout: cfg.timeout / 3, PingTimeout: cfg.timeout / 3},
		}),
	}, nil
}

// post sends one notification to the watch's URL. It returns the Retry-After of the response, if any. Errors are short
// and contain neither the URL nor the response.
func (n *Notifier) post(ctx context.Context, w watch.Watch, i item) (wait time.Duration, err error) {
	now := time.Now()
	resp, err := n.request(ctx, w, i, now)
	if err != nil {
		return 0, err
	}
	// The status decides; a slow or broken body does not matter.
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	_ = resp.Body.Close()
	switch status := resp.StatusCode; {
	case status/100 == 2:
		return 0, nil
	case status == http.StatusGone:
		return 0, errGone
	case status/100 == 3:
		return 0, fmt.Errorf("answered %d: redirects are not followed; set notify_url to the target", status)
	default:
		return retryAfter(status, resp.Header, now),
			errors.New(strings.TrimSpace(fmt.Sprintf("answered %d %s", status, http.StatusText(status))))
	}
}

// request posts a notification, signed at the time now. The caller closes the response's body.
func (n *Notifier) request(ctx context.Context, w watch.Watch, i item, now time.Time) (*http.Response, error) {
	secrets, err := n.cfg.Secrets.SigningSecrets(w.NotifySecret, w.NotifyURL)
	if err != nil {
		return nil, err
	}
	signed, err := signature(secrets, i.ID, now, []byte(i.Body))
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.NotifyURL, strings.NewReader(i.Body))
	if err != nil {
		return nil, errors.New("notify_url is not a valid URL")
	}
	req.Header.Set("Content-Type", "application/cloudevents+json")
	req.Header.Set("User-Agent", n.cfg.UserAgent)
	req.Header.Set("webhook-id", i.ID)
	req.Header.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	req.Header.Set("webhook-signature", signed)
	span := n.traced(req)
	resp, err := n.client.Do(req)
	if err != nil {
		return nil, n.fault(err)
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(resp.StatusCode))
	return resp, nil
}

// fault returns a short error without the URL.
func (n *Notifier) fault(err error) error {
	if refused, ok := errors.AsType[*egress.Fault](err); ok {
		return refused
	}
	if unusable, ok := errors.AsType[*egress.TrustError](err); ok {
		return unusable
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok && name.IsNotFound {
		return errors.New("the host's name does not resolve")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return errors.New("the host's certificate is not trusted; see the setting ca-file")
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fmt.Errorf("did not answer within %v", n.cfg.timeout)
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return fmt.Errorf("cannot be reached: %w", errno)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("closed the connection without an answer")
	}
	return errors.New("cannot be reached")
}
