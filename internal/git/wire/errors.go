package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"

	"lockstep/internal/egress"
	"lockstep/internal/git"
)

// remoteError classifies a failed request to the remote at host. fault is the first error recorded by the monitor, err
// the error of the request. The result contains no text from the remote but names of algorithms.
func remoteError(ctx context.Context, host string, auth Auth, fault, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("request to %s: %w", host, context.Cause(ctx))
	}
	if classified, ok := errors.AsType[git.Fault](err); ok {
		return classified
	}
	if status, ok := errors.AsType[statusError](fault); ok {
		return statusFailure(host, auth, status)
	}
	if refused, ok := errors.AsType[*refusal](fault); ok {
		return refused.classify(host, auth)
	}
	if invalid, ok := errors.AsType[*responseFault](fault); ok {
		return invalid.classify(host)
	}
	if refused, ok := errors.AsType[*hostKeyFault](fault); ok {
		return refused.classify(host)
	}
	if refused, ok := errors.AsType[*egress.Fault](fault); ok {
		return hostRefused(host, refused)
	}
	if unusable, ok := errors.AsType[*egress.TrustError](fault); ok {
		return git.Errorf(git.Retryable, git.ClassConfig, "%w; correct the file", unusable)
	}
	if late, ok := errors.AsType[*timeoutFault](fault); ok {
		return git.Errorf(git.Retryable, git.ClassNetwork, "%s sent %w", host, late)
	}
	switch {
	case errors.Is(fault, errLoginPage) && auth.IsZero():
		return credentialRequired(host)
	case errors.Is(fault, errLoginPage):
		return git.Errorf(git.Permanent, git.ClassAuth, "%s responded with a page to log in; check that %s is "+
			"current, and may be used for the repository from here", host, auth.named())
	case errors.Is(fault, errWebPage):
		return git.Errorf(git.Retryable, git.ClassServer,
			"%s responded with a web page; check that the URL is that of a repository, and whether it requires "+
				"a credential", host)
	case errors.Is(fault, errTooLong):
		return git.Errorf(git.Permanent, git.ClassQuota, "%s sent more than the limit for one fetch; "+
			"raise max-pack-bytes in the setting limits if the repository is meant to be that large", host)
	case errors.Is(fault, errTooManyRefs):
		return git.Errorf(git.Permanent, git.ClassQuota, "%s lists more than %d MiB of refs; delete some", host,
			maxAdvert>>20)
	case errors.Is(fault, errTooSlow):
		return git.Errorf(git.Retryable, git.ClassNetwork, "%s is too slow: %w", host, errTooSlow)
	case errors.Is(fault, io.ErrUnexpectedEOF):
		return git.Errorf(git.Retryable, git.ClassNetwork, "%s closed the connection in the middle of a response", host)
	case demandsCertificate(fault):
		return git.Errorf(git.Permanent, git.ClassConfig, "%s demands a client certificate, which is not supported", host)
	case fault != nil:
		return git.Errorf(git.Retryable, git.ClassNetwork, "cannot reach %s: %w", host, networkCause(fault))
	}
	return errNotGit.classify(host)
}

func statusFailure(host string, auth Auth, status statusError) error {
	switch code := status.code; {
	case status.limited:
		err := fmt.Errorf("%s limits the request rate: %w", host, status)
		return &git.Error{Retry: git.Retryable, Class: git.ClassBusy, RetryAfter: status.retryAfter, Err: err}
	case code == http.StatusUnauthorized && auth.IsZero():
		return credentialRequired(host)
	case code == http.StatusProxyAuthRequired:
		return git.Errorf(git.Retryable, git.ClassNetwork, "cannot reach %s: %w", host, proxyFault(code))
	case code == http.StatusPaymentRequired, code == http.StatusUnavailableForLegalReasons:
		return git.Errorf(git.Permanent, git.ClassAuth,
			"%s refuses access to the repository, which is blocked or not paid for (HTTP %d)", host, code)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return git.Errorf(git.Permanent, git.ClassAuth,
			"%s refused %s (HTTP %d); check that it is current and may read the repository", host, auth.named(), code)
	case code == http.StatusNotFound, code == http.StatusGone:
		return git.Errorf(git.Permanent, git.ClassNotFound,
			"%s has no such repository, or %s may not read it (HTTP %d)", host, auth.named(), code)
	}
	if status.isLasting() {
		return git.Errorf(git.Permanent, git.ClassServer, "%s responded with %w; check the URL", host, status)
	}
	return git.Errorf(git.Retryable, git.ClassServer, "%s responded with %w", host, status)
}

func credentialRequired(host string) error {
	return git.Errorf(git.Permanent, git.ClassAuth,
		"%s requires a credential; name one in the watch or change (--credential)", host)
}

// networkCause describes a network error without text from the remote: net/http quotes responses that it cannot
// parse, and certificates contain names.
func networkCause(err error) error {
	if e, ok := errors.AsType[*net.DNSError](err); ok { // may be the target of a redirect
		return fmt.Errorf("look up the name of the host, proxy or redirect: %s", e.Err)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return certificateFault(err)
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" {
		return e.Err // a TLS alert
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return errors.New("timeout")
	}
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return http.ErrSchemeMismatch
	case errors.Is(err, io.EOF):
		return errors.New("the connection was closed")
	}
	if refused, ok := errors.AsType[proxyFault](err); ok {
		return refused
	}
	if none, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err); ok {
		named := slices.Clone(none.RequestedAlgorithms[:min(len(none.RequestedAlgorithms), 20)])
		named = slices.DeleteFunc(named, func(name string) bool { return !algorithmName.MatchString(name) })
		return fmt.Errorf("its SSH server has no algorithm for the %s in common with Lockstep: it has %s; Lockstep has %s", none.What,
			strings.Join(named, ", "), strings.Join(none.SupportedAlgorithms, ", "))
	}
	return errors.New("the connection failed, or the response is not valid HTTP or SSH")
}

// algorithmName matches the names of algorithms of SSH, and little else that a server could say.
var algorithmName = regexp.MustCompile(`^[a-z0-9@.-]{1,64}$`)

// demandsCertificate reports whether the server's TLS alert says that the client has no certificate: its number, 116, is
// in RFC 8446; package tls exports no type of it.
func demandsCertificate(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "remote error" && e.Err.Error() == "tls: certificate required"
}

func certificateFault(err error) error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return errors.New("the certificate is signed by an unknown authority")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return errors.New("the certificate is for another host")
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return errors.New("the certificate has expired or is not valid yet")
	}
	return errors.New("the certificate cannot be verified")
}
