package gitserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// WithTLS serves HTTPS only, with a certificate of a private authority; see [Server.CA].
func WithTLS() Option { return func(s *Server) { s.secure = true } }

// CA returns the certificate of the authority created by [WithTLS], in PEM.
func (s *Server) CA() []byte { return s.ca }

// secured creates the authority and the server's certificate.
func (s *Server) secured(listener net.Listener) (net.Listener, error) {
	authority, authorityKey, err := certificate(&x509.Certificate{
		Subject: pkix.Name{CommonName: "gitserver"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("start git server: %w", err)
	}
	leaf, leafKey, err := certificate(&x509.Certificate{
		Subject: pkix.Name{CommonName: "127.0.0.1"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"git.test", "git.example.com"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authority, authorityKey)
	if err != nil {
		return nil, fmt.Errorf("start git server: %w", err)
	}
	s.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw})
	pair := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: leafKey}
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}}), nil
}

// certificate creates a certificate that is valid for a day. It is self-signed if parent is nil.
func certificate(
	template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey,
) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, err
	}
	made, err := x509.ParseCertificate(der)
	return made, key, err
}
