package signature

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// parseRing parses public keys: armored blocks, one after the other, or binary.
func parseRing(text string) (openpgp.EntityList, error) {
	if text[0]&0x80 != 0 {
		return checkRing(openpgp.ReadKeyRing(strings.NewReader(text)))
	}
	var ring openpgp.EntityList
	in := bufio.NewReader(strings.NewReader(text))
	for n := 1; ; n++ {
		block, err := armor.Decode(in)
		switch {
		case errors.Is(err, io.EOF) && n > 1:
			return ring, nil
		case err != nil:
			return nil, errors.New("want public keys as gpg --export --armor writes them")
		case block.Type != openpgp.PublicKeyType:
			return nil, fmt.Errorf("block %d is a %.40s; want public keys, as gpg --export --armor writes them", n, block.Type)
		}
		keys, err := checkRing(openpgp.ReadKeyRing(block.Body))
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", n, err)
		}
		if _, err := io.Copy(io.Discard, block.Body); err != nil {
			return nil, fmt.Errorf("block %d: %w", n, err)
		}
		ring = append(ring, keys...)
	}
}

func checkRing(ring openpgp.EntityList, err error) (openpgp.EntityList, error) {
	switch {
	case err != nil:
		return nil, fmt.Errorf("unreadable: %w", err)
	case len(ring) == 0:
		return nil, errors.New("no key")
	}
	for _, e := range ring {
		if e.PrivateKey != nil {
			return nil, errors.New("a private key; remove it, and export the public key alone")
		}
	}
	return ring, nil
}

func (k *Keys) verifyOpenPGP(o Object, now time.Time) Verdict {
	no := func(reason string, args ...any) Verdict { return refused(OpenPGP, reason, args...) }
	packets, sig, err := readSignature(o.Signature)
	if err != nil {
		return no("%v", err)
	}
	switch {
	case sig.Hash == crypto.SHA1 || sig.Hash == crypto.RIPEMD160:
		return no("its signature uses %s, which is broken", sig.Hash)
	case sig.IssuerKeyId == nil:
		return no("its signature names no key")
	}
	known := k.ring.KeysById(*sig.IssuerKeyId)
	switch {
	case len(known) == 0:
		return no("key %016X is not trusted", *sig.IssuerKeyId)
	case len(k.ring.KeysByIdUsage(*sig.IssuerKeyId, packet.KeyFlagSign)) == 0:
		return no("key %016X may not sign", *sig.IssuerKeyId)
	}
	config := &packet.Config{Time: func() time.Time { return now }}
	_, signer, err := openpgp.VerifyDetachedSignature(k.ring, bytes.NewReader(o.Payload), bytes.NewReader(packets), config)
	if err != nil {
		return no("%s", explain(err, sig, now))
	}
	for _, key := range known {
		if key.Entity == signer && key.PublicKey.KeyId == *sig.IssuerKeyId &&
			sig.CreationTime.Before(key.PublicKey.CreationTime) {
			return no("its signature is older than its key %016X", *sig.IssuerKeyId)
		}
	}
	by := ""
	if id := signer.PrimaryIdentity(); id != nil {
		by = id.Name
	}
	fingerprint := fmt.Sprintf("%X", signer.PrimaryKey.Fingerprint)
	return Verdict{By: cmp.Or(printable(by), fingerprint), Key: fingerprint, Format: OpenPGP}
}

// readSignature returns the packets of an armored signature, which must be a single one of a document.
func readSignature(armored []byte) (packets []byte, sig *packet.Signature, err error) {
	if bytes.Count(armored, []byte("-----BEGIN ")) > 1 {
		return nil, nil, errors.New("it has several signatures")
	}
	if !bytes.HasSuffix(bytes.TrimSpace(armored), []byte("-----END PGP SIGNATURE-----")) {
		return nil, nil, errors.New("its signature is cut off, or there is text after its signature")
	}
	block, err := armor.Decode(bytes.NewReader(armored))
	if err != nil || block.Type != openpgp.SignatureType {
		return nil, nil, errors.New("its signature is not a detached OpenPGP signature")
	}
	if packets, err = io.ReadAll(block.Body); err != nil {
		return nil, nil, errors.New("its signature is damaged")
	}
	for in := packet.NewReader(bytes.NewReader(packets)); ; {
		p, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		one, ok := p.(*packet.Signature)
		switch {
		case err != nil || !ok:
			return nil, nil, errors.New("its signature is damaged, or of an unsupported kind")
		case sig != nil:
			return nil, nil, errors.New("it has several signatures")
		case one.SigType != packet.SigTypeBinary && one.SigType != packet.SigTypeText:
			return nil, nil, errors.New("its signature is not one of a document")
		}
		sig = one
	}
	if sig == nil {
		return nil, nil, errors.New("its signature is empty")
	}
	return packets, sig, nil
}

// explain says why a signature with a known key is not valid.
func explain(err error, sig *packet.Signature, now time.Time) string {
	key := fmt.Sprintf("key %016X", *sig.IssuerKeyId)
	switch {
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		return key + " is revoked"
	case errors.Is(err, pgperrors.ErrKeyExpired):
		return key + " is expired"
	case errors.Is(err, pgperrors.ErrSignatureExpired) && sig.CreationTime.After(now):
		return "its signature is from the future"
	case errors.Is(err, pgperrors.ErrSignatureExpired):
		return "its signature is expired"
	}
	return "its signature by " + key + " does not match its content"
}
