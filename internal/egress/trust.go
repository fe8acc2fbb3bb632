package egress

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Trust returns a TLS configuration that trusts the system's certificate authorities and, if the setting ca-file names
// a PEM file, those in it.
func Trust(caFile string) (*tls.Config, error) {
	if caFile == "" {
		return &tls.Config{}, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("ca-file: %w", err)
	}
	authorities, err := x509.SystemCertPool()
	if err != nil {
		authorities = x509.NewCertPool()
	}
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca-file: no certificate in %s; want a PEM bundle", caFile)
	}
	return &tls.Config{RootCAs: authorities}, nil
}
