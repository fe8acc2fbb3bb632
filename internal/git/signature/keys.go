package signature

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"golang.org/x/crypto/ssh"
)

// Formats of signatures.
const (
	OpenPGP = "openpgp"
	SSH     = "ssh"
	x509    = "x509"
)

// Files are the texts of keys. At least one of the first two must be set.
type Files struct {
	OpenPGPKeys    string // public keys, armored (any number of blocks) or binary
	AllowedSigners string // in the format of ssh-keygen(1), ALLOWED SIGNERS
	RevokedKeys    string // SSH public keys, one per line
}

// Keys are trusted keys. They are safe for concurrent use.
type Keys struct {
	ring    openpgp.EntityList
	signers []signer
	revoked map[string]bool // SSH public keys in wire format
}

// ParseKeys parses trusted keys. Its errors name the file and the line, or what is wrong with a key.
func ParseKeys(files Files) (*Keys, error) {
	k := &Keys{revoked: map[string]bool{}}
	var err error
	if files.OpenPGPKeys == "" && files.AllowedSigners == "" {
		return nil, errors.New("there are no keys; want openpgpKeys, allowedSigners or both")
	}
	if files.OpenPGPKeys != "" {
		if k.ring, err = parseRing(files.OpenPGPKeys); err != nil {
			return nil, fmt.Errorf("openpgpKeys: %w", err)
		}
	}
	if k.signers, err = parseAllowedSigners(files.AllowedSigners); err != nil {
		return nil, fmt.Errorf("allowedSigners: %w", err)
	}
	if err = k.parseRevoked(files.RevokedKeys); err != nil {
		return nil, fmt.Errorf("revokedKeys: %w", err)
	}
	return k, nil
}

func (k *Keys) parseRevoked(text string) error {
	if bytes.HasPrefix([]byte(text), []byte("SSHKRL\n")) {
		return errors.New("a binary KRL is not supported; list public keys, one per line")
	}
	for i, line := range lines(text) {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return fmt.Errorf("line %d: not an SSH public key", i)
		}
		k.revoked[string(key.Marshal())] = true
	}
	return nil
}

// Verdict says who signed an object, or why nobody trusted did.
type Verdict struct {
	By     string // the signer, "" unless verified
	Key    string // fingerprint of the signer's key, "" unless verified
	Format string // OpenPGP or SSH; "" if there is no signature of a known format
	Reason string // why the object is not verified, "" if it is
}

// Verified reports whether a trusted key signed the object.
func (v Verdict) Verified() bool { return v.Reason == "" }

func refused(format, reason string, args ...any) Verdict {
	return Verdict{Format: format, Reason: fmt.Sprintf(reason, args...)}
}

// Verify verifies an object at a time. A signature that cannot be read, however odd, is a refusal.
func (k *Keys) Verify(o Object, now time.Time) (v Verdict) {
	format := armorOf(o.Signature)
	defer func() {
		if recover() != nil { // in a library
			v = refused(format, "its signature cannot be read")
		}
	}()
	switch {
	case len(o.Signature) == 0:
		return refused("", "it is not signed")
	case len(o.Payload)+len(o.Signature) > MaxObject:
		return refused(format, "it is larger than %d MiB", MaxObject>>20)
	case len(o.Signature) > maxSignature:
		return refused(format, "its signature is larger than %d KiB", maxSignature>>10)
	case o.several:
		return refused(format, "it has several signatures")
	}
	switch format {
	case OpenPGP:
		return k.verifyOpenPGP(o, now)
	case SSH:
		return k.verifySSH(o, now)
	case x509:
		return refused(x509, "x509 signatures (gpgsm, gitsign) are not supported; sign with OpenPGP or SSH")
	}
	return refused("", "its signature has an unknown format")
}
