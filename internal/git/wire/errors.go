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
	"syscall"

	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/egress"
)

// remoteError classifies a failure to talk to the remote at host. fault is what the wire remembers,
// err what go-git made of it. Nothing the remote said is repeated.
func remoteError(ctx context.Context, host string, auth Auth, fault, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ask %s: %w", host, context.Cause(ctx))
	}
	if volume, ok := errors.AsType[*events.Error](err); ok {
		return volume
	}
	if status, ok := errors.AsType[statusError](fault); ok {
		return statusFault(host, auth, status)
	}
	if said, ok := errors.AsType[*refusal](fault); ok {
		return said.classify(host, auth)
	}
	if refused, ok := errors.AsType[*hostKeyFault](fault); ok {
		return refused.classify(host)
	}
	if refused, ok := errors.AsType[*egress.Fault](fault); ok {
		return notDialled(host, refused)
	}
	switch {
	case errors.Is(fault, errWebPage):
		return events.Errorf(events.Retryable, events.ClassServer,
			"%s answered with a web page; check that the URL is the repository's, and whether it wants a credential", host)
	case errors.Is(fault, errTooLong):
		return events.Errorf(events.Permanent, events.ClassQuota, "%s sent more than is allowed for one fetch; raise max-pack-bytes if the repository is meant to be that large", host)
	case errors.Is(fault, errRefs):
		return events.Errorf(events.Permanent, events.ClassQuota, "%s lists more than %d MiB of refs, which is as many as are read; delete some", host, maxAdvert>>20)
	case errors.Is(fault, errLines):
		return events.Errorf(events.Permanent, events.ClassQuota, "%s sent more than %d MiB before the pack, of where the history is to end; ask for another depth", host, maxPrologue>>20)
	case errors.Is(fault, errIdle):
		return events.Errorf(events.Retryable, events.ClassNetwork, "%s fell silent: %w", host, errIdle)
	case errors.Is(fault, errTrickle):
		return events.Errorf(events.Retryable, events.ClassNetwork, "%s is too slow: %w", host, errTrickle)
	case errors.Is(fault, io.ErrUnexpectedEOF):
		return events.Errorf(events.Retryable, events.ClassNetwork, "%s broke off in the middle of an answer", host)
	case fault != nil:
		return events.Errorf(events.Retryable, events.ClassNetwork, "cannot reach %s: %w", host, networkCause(fault))
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return events.Errorf(events.Permanent, events.ClassNoRef, "the repository at %s is empty; push a commit to it", host)
	}
	return events.Errorf(events.Retryable, events.ClassServer, "%s answered with something that is not Git's protocol", host)
}

func statusFault(host string, auth Auth, status statusError) error {
	switch code := status.code; {
	case status.limited:
		return events.Errorf(events.Retryable, events.ClassServer, "%s limits how often it is asked: %w", host, status)
	case code == http.StatusUnauthorized && auth.IsZero():
		return events.Errorf(events.Permanent, events.ClassAuth, "%s wants a credential: name one in the change", host)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return events.Errorf(events.Permanent, events.ClassAuth,
			"%s refused the credential (HTTP %d); check that it is current and may read the repository", host, code)
	case code == http.StatusNotFound, code == http.StatusGone:
		return events.Errorf(events.Permanent, events.ClassNotFound,
			"%s has no such repository, or hides it from this credential (HTTP %d)", host, code)
	}
	return events.Errorf(events.Retryable, events.ClassServer, "%s answered with %w", host, status)
}

// networkCause says what went wrong in words that are none of the remote's: net/http quotes an
// answer that it cannot read, and a certificate has names in it.
func networkCause(err error) error {
	if e, ok := errors.AsType[*net.DNSError](err); ok { // its name may be that of a redirect
		return fmt.Errorf("look up its name, or that of a proxy or a redirect: %s", e.Err)
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
		return errors.New("it took too long to answer")
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
	if _, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err); ok {
		return errors.New("its SSH has no algorithm in common with ours")
	}
	return errors.New("the connection failed, or what came over it is not the protocol that was expected")
}

func certificateFault(err error) error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return errors.New("its certificate is signed by an unknown authority")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return errors.New("its certificate is for another host")
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return errors.New("its certificate has expired, or is not valid yet")
	}
	return errors.New("its certificate does not verify")
}
