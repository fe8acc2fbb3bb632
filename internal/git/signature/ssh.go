package signature

import (
	"bytes"
	"encoding/pem"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

const namespace = "git"

func (k *Keys) verifySSH(o Object, now time.Time) Verdict {
	no := func(reason string, args ...any) Verdict { return refused(SSH, reason, args...) }
	if o.badTime {
		return no("its date cannot be read, so the validity of keys cannot be checked")
	}
	if block, rest := pem.Decode(o.Signature); block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return no("its signature is damaged, or there is text after its signature")
	}
	sig, err := sshsig.Unarmor(o.Signature)
	if err != nil {
		return no("its signature cannot be read")
	}
	key := plainKey(sig.PublicKey)
	fingerprint := ssh.FingerprintSHA256(key)
	switch {
	case sig.Namespace != namespace:
		return no("its signature is for the namespace %.40q, not %q", sig.Namespace, namespace)
	case !strongSSH(key, sig.Signature):
		return no("its signature uses DSA or SHA-1, which are broken")
	}
	if err := sshsig.Verify(bytes.NewReader(o.Payload), sig, sig.PublicKey, sig.HashAlgorithm, namespace); err != nil {
		return no("its signature by key %s does not match its content", fingerprint)
	}
	if k.isRevoked(sig.PublicKey) {
		return no("key %s is revoked", fingerprint)
	}
	at := now
	if !o.Time.IsZero() {
		at = o.Time
	}
	reason := "key " + fingerprint + " is not trusted"
	for _, s := range k.signers {
		by, problem := s.admits(sig.PublicKey, at)
		if by != "" {
			return Verdict{By: printable(by), Key: fingerprint, Format: SSH}
		}
		if problem != "" {
			reason = "key " + fingerprint + " " + problem
		}
	}
	return no("%s", reason)
}

// plainKey returns a key, or that of a certificate.
func plainKey(key ssh.PublicKey) ssh.PublicKey {
	if cert, ok := key.(*ssh.Certificate); ok {
		return cert.Key
	}
	return key
}

// strongSSH reports whether an algorithm is none of DSA, RSA with SHA-1, and unknown ones.
func strongSSH(key ssh.PublicKey, sig *ssh.Signature) bool {
	switch key.Type() {
	case ssh.KeyAlgoRSA:
		return sig.Format == ssh.KeyAlgoRSASHA256 || sig.Format == ssh.KeyAlgoRSASHA512
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519,
		ssh.KeyAlgoSKECDSA256:
		return true
	}
	return false
}

// isRevoked reports whether a key, its certificate, or the certificate's authority is revoked.
func (k *Keys) isRevoked(key ssh.PublicKey) bool {
	if cert, ok := key.(*ssh.Certificate); ok &&
		(k.revoked[string(cert.Key.Marshal())] || k.revoked[string(cert.SignatureKey.Marshal())]) {
		return true
	}
	return k.revoked[string(key.Marshal())]
}

// printable replaces control characters of a name in a key.
func printable(name string) string {
	name = strings.ToValidUTF8(name, "?")
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, name)
}

const maxName = 200 // bytes
