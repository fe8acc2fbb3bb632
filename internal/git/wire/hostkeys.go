package wire

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"lockstep/internal/git"
)

// hostKeyFault is the error for an unknown, changed or revoked SSH host key.
type hostKeyFault struct {
	key     string // fingerprint of the presented key
	changed bool   // another key is known, or this one is revoked
	where   string // names the known_hosts files
	refused error  // why the presented certificate of the key is not accepted; nil for none
}

func (e *hostKeyFault) Error() string { return "the host key is not known" }

func (e *hostKeyFault) classify(host string) error {
	if e.changed {
		return git.Errorf(git.Permanent, git.ClassAuth,
			"the SSH key of %s is not the one in %s: the host has a new key, or somebody may be in between; it presents %s: "+
				"compare this with the fingerprint that its operator publishes, and correct the line", host, e.where, e.key)
	}
	why := ""
	if e.refused != nil {
		why = fmt.Sprintf(" (its certificate is not accepted: %v)", e.refused)
	}
	return git.Errorf(git.Permanent, git.ClassConfig,
		"the SSH key of %s is not in %s; it presents %s%s: compare this with the fingerprint that its operator "+
			"publishes, and add the line that ssh-keyscan prints, or set known-hosts to another file", host, e.where, e.key, why)
}

// hostKeys verifies the keys of SSH servers, and certificates by the authorities of @cert-authority lines.
type hostKeys struct {
	keys, authorities ssh.HostKeyCallback
	where             string
}

// hostKeys parses lines of known_hosts, or reads the network's files again if lines is empty.
func (n *Network) hostKeys(lines string) (hostKeys, error) {
	if lines != "" {
		const where = "the credential's knownHosts"
		known, err := n.knownLines.parse(n.log, where, knownLines{where, lines})
		if err != nil {
			return hostKeys{}, git.Errorf(git.Permanent, git.ClassConfig, "%w; correct it", err)
		}
		return known, nil
	}
	var files []knownLines
	for _, file := range n.knownHosts {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) && !n.knownHostsRequired {
			continue
		}
		if isUnreachable(err) && !n.knownHostsRequired {
			if _, warned := n.skippedFiles.LoadOrStore(file, true); !warned {
				n.log.Warn("known_hosts file skipped", "file", file, "error", err)
			}
			continue
		}
		if err != nil {
			return hostKeys{}, git.Errorf(git.Permanent, git.ClassConfig,
				"known-hosts: %w; correct the file, or name another", err)
		}
		files = append(files, knownLines{file, string(content)})
	}
	known, err := n.knownLines.parse(n.log, strings.Join(n.knownHosts, " or "), files...)
	if err != nil {
		return hostKeys{}, git.Errorf(git.Permanent, git.ClassConfig,
			"known-hosts: %w; correct the file, or name another", err)
	}
	return known, nil
}

// isUnreachable reports whether a file cannot be read by this process, now or later: the home directory may
// be /dev/null, or hidden by ProtectHome of systemd. A process out of file descriptors can read it later, and
// must not ignore the keys that the file revokes.
func isUnreachable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) ||
		errors.Is(err, syscall.ELOOP)
}

// algorithms returns the algorithms of the keys known for address, so that a server with several keys presents a known
// one. It returns nil, which means all algorithms, certificates first, if no key is known, or an authority is.
func (k hostKeys) algorithms(address string) (algorithms []string) {
	none, err := ssh.NewPublicKey(make(ed25519.PublicKey, ed25519.PublicKeySize))
	if err != nil {
		return nil
	}
	wanted := func(check ssh.HostKeyCallback) []knownhosts.KnownKey {
		known, ok := errors.AsType[*knownhosts.KeyError](check(address, &net.TCPAddr{IP: net.IPv4zero}, none))
		if !ok {
			return nil
		}
		return known.Want
	}
	if len(wanted(k.authorities)) > 0 {
		return nil
	}
	for _, want := range wanted(k.keys) {
		names := []string{want.Key.Type()}
		if names[0] == ssh.KeyAlgoRSA {
			names = []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
		}
		for _, name := range names {
			if !slices.Contains(algorithms, name) {
				algorithms = append(algorithms, name)
			}
		}
	}
	for _, name := range slices.Clone(algorithms) { // the key may be in a certificate
		algorithms = append(algorithms, strings.TrimSuffix(name, "@openssh.com")+"-cert-v01@openssh.com")
	}
	return algorithms
}

// verify is an [ssh.HostKeyCallback]. Like OpenSSH, it takes the key alone if the certificate is not accepted.
func (k hostKeys) verify(address string, remote net.Addr, key ssh.PublicKey) error {
	certificate, isCertified := key.(*ssh.Certificate)
	if isCertified {
		key = certificate.Key
	}
	fault := &hostKeyFault{key: ssh.FingerprintSHA256(key), where: k.where}
	err := k.keys(address, remote, key)
	if _, isRevoked := errors.AsType[*knownhosts.RevokedError](err); isRevoked {
		fault.changed = true
		return fault
	}
	if isCertified {
		if fault.refused = k.authorities(address, remote, certificate); fault.refused == nil {
			return nil
		}
	}
	if err == nil {
		return nil
	}
	mismatch, ok := errors.AsType[*knownhosts.KeyError](err)
	fault.changed = !ok || len(mismatch.Want) > 0
	return fault
}
