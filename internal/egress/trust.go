package egress

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
)

// Trust holds the certificate authorities to trust: the system's and those in a PEM file, which it reads again at each
// use. The zero Trust has only the system's. It is safe for concurrent use.
type Trust struct {
	file string

	mu     sync.Mutex
	pem    string
	config *tls.Config // made of pem
}

// TrustError reports that the file of the setting ca-file cannot be used.
type TrustError struct{ err error }

func (e *TrustError) Error() string { return fmt.Sprintf("ca-file: %v", e.err) }

// NewTrust returns a Trust with the authorities in caFile, none if it is empty, or a [TrustError].
func NewTrust(caFile string) (*Trust, error) {
	t := &Trust{file: caFile}
	_, err := t.TLS()
	return t, err
}

// TLS returns a configuration with the present authorities, which must not be modified: it is the same one as long as
// the file has the same content. The error is a [TrustError].
func (t *Trust) TLS() (*tls.Config, error) {
	var pem []byte
	if t.file != "" {
		var err error
		if pem, err = os.ReadFile(t.file); err != nil {
			return nil, &TrustError{err}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.config != nil && t.pem == string(pem) {
		return t.config, nil
	}
	config := &tls.Config{}
	if t.file != "" {
		var err error
		if config.RootCAs, err = x509.SystemCertPool(); err != nil {
			config.RootCAs = x509.NewCertPool()
		}
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &TrustError{errors.New("no certificate in " + t.file + "; want a PEM bundle")}
		}
	}
	t.pem, t.config = string(pem), config
	return config, nil
}

// Transport is an HTTP transport with the authorities of a [Trust]. When they change, it closes idle connections, and
// further requests use new ones.
type Transport struct {
	trust *Trust

	mu      sync.Mutex
	current *http.Transport
	config  *tls.Config // of current, before it was cloned
}

// Transport returns a Transport with the settings of base.
func (t *Trust) Transport(base *http.Transport) *Transport {
	return &Transport{trust: t, current: base}
}

// RoundTrip implements [http.RoundTripper]. It returns a [TrustError] if the file cannot be used.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	current, err := t.renew()
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	return current.RoundTrip(req)
}

// renew returns a transport with the present authorities.
func (t *Transport) renew() (*http.Transport, error) {
	config, err := t.trust.TLS()
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if config != t.config {
		former := t.current
		t.current, t.config = former.Clone(), config
		t.current.TLSClientConfig = config.Clone()
		former.CloseIdleConnections()
	}
	return t.current, nil
}

// CloseIdleConnections closes connections that are not in use.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current.CloseIdleConnections()
}
