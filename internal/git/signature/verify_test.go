package signature_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"lockstep/internal/git/signature"
)

const payload = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nparent 0123456789012345678901234567890123456789\nauthor A <a> 1 +0000\n" +
	"committer C <c@example.com> 1704164645 +0100\n\nmessage\n"

// signed returns the payload as a commit with a signature.
func signed(armored string) []byte {
	header := "gpgsig " + strings.ReplaceAll(strings.TrimSuffix(armored, "\n"), "\n", "\n ") + "\n"
	return []byte(strings.Replace(payload, "\n\n", "\n"+header+"\n", 1))
}

func sshSigner(t testing.TB, seed byte) ssh.Signer {
	signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func sshSigned(t testing.TB, signer ssh.Signer, namespace string) []byte {
	sig, err := sshsig.Sign(strings.NewReader(payload), signer, sshsig.HashSHA512, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return signed(string(sshsig.Armor(sig)))
}

func verdict(t testing.TB, keys *signature.Keys, content []byte) signature.Verdict {
	t.Helper()
	o, err := signature.Parse(signature.Commit, content, signature.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	return keys.Verify(o, time.Unix(1704164700, 0))
}

func parseKeys(t testing.TB, files signature.Files) *signature.Keys {
	t.Helper()
	keys, err := signature.ParseKeys(files)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestVerifySSH(t *testing.T) {
	one, two := sshSigner(t, 1), sshSigner(t, 2)
	public := string(ssh.MarshalAuthorizedKey(one.PublicKey()))
	keys := parseKeys(t, signature.Files{AllowedSigners: "alice " + public})
	good := verdict(t, keys, sshSigned(t, one, "git"))
	if good.By != "alice" || good.Key != ssh.FingerprintSHA256(one.PublicKey()) || good.Format != signature.SSH || !good.Verified() {
		t.Errorf("got %+v", good)
	}
	for name, tc := range map[string]struct {
		content []byte
		reason  string
	}{
		"unknown key":          {sshSigned(t, two, "git"), "is not trusted"},
		"namespace":            {sshSigned(t, one, "file"), `namespace "file"`},
		"tampered":             {bytes.Replace(sshSigned(t, one, "git"), []byte("message"), []byte("massage"), 1), "does not match"},
		"not signed":           {[]byte(payload), "not signed"},
		"unknown format":       {signed("-----BEGIN SECRET-----\n"), "unknown format"},
		"x509":                 {signed("-----BEGIN SIGNED MESSAGE-----\nMIIB\n-----END SIGNED MESSAGE-----\n"), "x509"},
		"garbage":              {signed("-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"), "cannot be read"},
		"huge signature":       {signed("-----BEGIN SSH SIGNATURE-----\n" + strings.Repeat("A", 70<<10) + "\n-----END SSH SIGNATURE-----\n"), "larger than 64 KiB"},
		"huge commit":          {append(sshSigned(t, one, "git"), bytes.Repeat([]byte("x"), signature.MaxObject)...), "larger than 4 MiB"},
		"two SSH signatures":   {signed(strings.Repeat(armoredOf(sshSigned(t, one, "git")), 2)), "text after"},
		"date cannot be read":  {bytes.Replace(sshSigned(t, one, "git"), []byte("1704164645"), []byte("17041646450000000000"), 1), "date cannot be read"},
		"OpenPGP, cut off":     {signed("-----BEGIN PGP SIGNATURE-----\n\nAAAA\n"), "cut off"},
		"OpenPGP, no packet":   {signed("-----BEGIN PGP SIGNATURE-----\n\n=twTO\n-----END PGP SIGNATURE-----\n"), "is empty"},
		"OpenPGP, a message":   {signed("-----BEGIN PGP MESSAGE-----\n\nAAAA\n-----END PGP SIGNATURE-----\n"), "not a detached"},
		"OpenPGP, odd packets": {signed("-----BEGIN PGP SIGNATURE-----\n\nyAYBAAAAAAA=\n-----END PGP SIGNATURE-----\n"), "damaged"},
	} {
		if v := verdict(t, keys, tc.content); v.Verified() || v.By != "" || !strings.Contains(v.Reason, tc.reason) {
			t.Errorf("%s: got %+v, want %q", name, v, tc.reason)
		}
	}
}

// armoredOf returns the signature of a commit.
func armoredOf(content []byte) string {
	o, err := signature.Parse(signature.Commit, content, signature.SHA1)
	if err != nil {
		panic(err)
	}
	return string(o.Signature)
}

func TestVerifyOpenPGP(t *testing.T) {
	e, err := openpgp.NewEntity("Alice", "", "alice@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	var ring, sig bytes.Buffer
	w, err := armor.Encode(&ring, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Serialize(w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := openpgp.ArmoredDetachSign(&sig, e, strings.NewReader(payload), nil); err != nil {
		t.Fatal(err)
	}
	keys := parseKeys(t, signature.Files{OpenPGPKeys: ring.String()})
	o, err := signature.Parse(signature.Commit, signed(sig.String()+"\n"), signature.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	v := keys.Verify(o, time.Now().Add(time.Minute))
	if v.By != "Alice <alice@example.com>" || v.Key != fmt.Sprintf("%X", e.PrimaryKey.Fingerprint) || v.Format != signature.OpenPGP {
		t.Errorf("got %+v", v)
	}
	if v := keys.Verify(o, time.Now().Add(-time.Hour)); v.Verified() {
		t.Errorf("a signature from the future: got %+v", v)
	}
	if got := o.Parents; len(got) != 1 || got[0] != "0123456789012345678901234567890123456789" {
		t.Errorf("got parents %q", got)
	}
}

func TestParseKeys(t *testing.T) {
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshSigner(t, 1).PublicKey())))
	for name, tc := range map[string]struct {
		files signature.Files
		want  string
	}{
		"nothing":            {signature.Files{}, "there are no keys"},
		"revoked alone":      {signature.Files{RevokedKeys: key}, "there are no keys"},
		"comments":           {signature.Files{AllowedSigners: "# none\n"}, "allowedSigners: there is no line"},
		"no principal":       {signature.Files{AllowedSigners: "\n" + key}, "allowedSigners: line 2"},
		"empty principal":    {signature.Files{AllowedSigners: "a,,b " + key}, "line 1: want principals"},
		"unknown option":     {signature.Files{AllowedSigners: "a no-touch " + key}, `unknown option "no-touch"`},
		"option, unquoted":   {signature.Files{AllowedSigners: "a namespaces=git " + key}, `want name="value"`},
		"option, bad time":   {signature.Files{AllowedSigners: `a valid-after="2024" ` + key}, "option valid-after: want YYYYMMDD"},
		"times reversed":     {signature.Files{AllowedSigners: `a valid-after="20240101",valid-before="20230101" ` + key}, "before valid-after"},
		"no key":             {signature.Files{AllowedSigners: "a cert-authority"}, "want a key"},
		"bad key":            {signature.Files{AllowedSigners: "a ssh-ed25519 AAAA"}, "not a valid ssh-ed25519 key"},
		"type of another":    {signature.Files{AllowedSigners: "a ssh-rsa " + strings.Fields(key)[1]}, "not a valid ssh-rsa key"},
		"armor of nothing":   {signature.Files{OpenPGPKeys: "hello"}, "openpgpKeys: want public keys"},
		"a message":          {signature.Files{OpenPGPKeys: "-----BEGIN PGP MESSAGE-----\n\nAAAA\n-----END PGP MESSAGE-----\n"}, "block 1 is a PGP MESSAGE"},
		"binary garbage":     {signature.Files{OpenPGPKeys: "\xff\xfe\xfd"}, "openpgpKeys"},
		"KRL":                {signature.Files{AllowedSigners: "a " + key, RevokedKeys: "SSHKRL\n\x00"}, "binary KRL"},
		"revoked, not a key": {signature.Files{AllowedSigners: "a " + key, RevokedKeys: "SHA256:abc"}, "revokedKeys: line 1"},
	} {
		if _, err := signature.ParseKeys(tc.files); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

// FuzzVerify feeds arbitrary objects: no panic, and no verdict in favour of what no key signed.
func FuzzVerify(f *testing.F) {
	signer := sshSigner(f, 1)
	keys := parseKeys(f, signature.Files{AllowedSigners: "alice " + string(ssh.MarshalAuthorizedKey(signer.PublicKey()))})
	good := sshSigned(f, signer, "git")
	f.Add("commit", good)
	f.Add("tag", []byte("object 1\ntype commit\ntag v1\ntagger A <a> 1 +0000\n\nm\n-----BEGIN PGP SIGNATURE-----\n\nAAAA\n-----END PGP SIGNATURE-----\n"))
	f.Add("tag", good)
	f.Add("commit", []byte("gpgsig \ngpgsig-sha256 \n \n\n"))
	f.Fuzz(func(t *testing.T, kind string, content []byte) {
		for _, format := range []signature.Format{signature.SHA1, signature.SHA256} {
			o, err := signature.Parse(signature.Kind(kind), content, format)
			if err != nil {
				continue
			}
			if v := keys.Verify(o, time.Unix(1704164700, 0)); v.Verified() && string(o.Payload) != payload {
				t.Errorf("verified: %+v\n%q", v, content)
			}
		}
	})
}
