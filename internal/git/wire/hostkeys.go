package wire

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"

	"lockstep/events"
)

// hostKeyFault says that an SSH server's key is not the one expected.
type hostKeyFault struct {
	key     string // fingerprint of the one that was shown
	changed bool   // another one is known, or this one has been revoked
	where   string // where keys are looked for
}

func (e *hostKeyFault) Error() string { return "the host key is not known" }

func (e *hostKeyFault) classify(host string) error {
	if e.changed {
		return events.Errorf(events.Permanent, events.ClassAuth,
			"the SSH key of %s is not the one in %s: somebody may be in between, or the host has a new key; it shows %s: "+
				"compare that with what its operator publishes, and correct the line", host, e.where, e.key)
	}
	return events.Errorf(events.Permanent, events.ClassConfig,
		"the SSH key of %s is not in %s; it shows %s: compare that with what its operator publishes, and add the line that "+
			"ssh-keyscan prints, or name another file by the setting known-hosts", host, e.where, e.key)
}

// hostKeys checks the keys of SSH servers. Authorities of host keys (@cert-authority) are not supported.
type hostKeys struct {
	check ssh.HostKeyCallback
	where string
}

// hostKeys reads the known_hosts lines given, or else the network's files, which may have changed.
func (n *Network) hostKeys(lines string) (hostKeys, error) {
	if lines != "" {
		check, err := parseKnownHosts(lines)
		if err != nil {
			return hostKeys{}, events.Errorf(events.Permanent, events.ClassConfig, "the credential's knownHosts cannot be read as such a file; correct it")
		}
		return hostKeys{check, "the credential's knownHosts"}, nil
	}
	var files []string
	for _, file := range n.knownHosts {
		if _, err := os.Stat(file); err == nil || n.mustKnow {
			files = append(files, file)
		}
	}
	check, err := knownhosts.New(files...)
	if err != nil {
		return hostKeys{}, events.Errorf(events.Permanent, events.ClassConfig, "known-hosts: %w; correct the file, or name another", err)
	}
	return hostKeys{check, strings.Join(n.knownHosts, " or ")}, nil
}

// parseKnownHosts reads lines by way of a file in memory: the package reads only files.
func parseKnownHosts(lines string) (ssh.HostKeyCallback, error) {
	fd, err := unix.MemfdCreate("known_hosts", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "known_hosts")
	defer file.Close()
	if _, err := file.WriteString(lines); err != nil {
		return nil, err
	}
	return knownhosts.New(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// algorithms returns those of the keys known for address, so that of several keys the server shows one of
// them; nil for any, when none is known.
func (k hostKeys) algorithms(address string) (algorithms []string) {
	none, err := ssh.NewPublicKey(make(ed25519.PublicKey, ed25519.PublicKeySize))
	if err != nil {
		return nil
	}
	known, ok := errors.AsType[*knownhosts.KeyError](k.check(address, &net.TCPAddr{IP: net.IPv4zero}, none))
	if !ok {
		return nil
	}
	for _, want := range known.Want {
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
	return algorithms
}

// verify is an [ssh.HostKeyCallback].
func (k hostKeys) verify(address string, remote net.Addr, key ssh.PublicKey) error {
	err := k.check(address, remote, key)
	if err == nil {
		return nil
	}
	fault := &hostKeyFault{key: ssh.FingerprintSHA256(key), where: k.where}
	if mismatch, ok := errors.AsType[*knownhosts.KeyError](err); !ok || len(mismatch.Want) > 0 {
		fault.changed = true
	}
	return fault
}
